"""Ends what Ray Serve leaves running in a process that has used it.

Deployment handles of one process share an event loop in a daemon thread, which neither
`serve.shutdown` nor `ray.shutdown` ends. An interpreter that is taken apart while such a thread
runs ends it within whatever native code it is in, and one run in many of the tests crashed there,
after all had passed (compare ray-project/ray#31145).
"""

from __future__ import annotations

import asyncio
import sys
import threading
from typing import Any

_LIMIT_S = 10.0


def end_router_loop() -> None:
    """Stop the loop of Serve's handles, if there is one, and wait for its thread. Idempotent.

    Raises:
        TimeoutError: the loop does not end within 10 s.
    """
    router: Any = sys.modules.get("ray.serve._private.router")
    loop = None if router is None else router.SingletonThreadRouter._asyncio_loop
    if loop is None:
        return
    router.SingletonThreadRouter._asyncio_loop = None
    [thread] = [one for one in threading.enumerate() if "_run_router_event_loop" in one.name]
    asyncio.run_coroutine_threadsafe(_cancel_others(), loop).result(_LIMIT_S)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(_LIMIT_S)
    if thread.is_alive():
        raise TimeoutError(f"the event loop of Serve's handles runs on after {_LIMIT_S:g} s")
    loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    await asyncio.gather(*others, return_exceptions=True)
