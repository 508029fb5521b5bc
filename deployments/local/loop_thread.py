"""An event loop in a thread of its own, for callers that have none or are inside another one.

Scripts have no running loop, and notebooks have one that must not be blocked from within. A loop of
ours beside them lets both call plain functions, from any thread.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Coroutine
from functools import partial
from typing import Any, TypeVar

Result = TypeVar("Result")

_CANCEL_S = 30.0  # for what was interrupted to free what it holds; a pass may be under way
_JOIN_S = 10.0
_LOOK_S = 0.5  # between looks for an interrupt


class LoopThread:
    """Runs coroutines until closed. Its thread ends with the process at the latest."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run a coroutine; return its result or raise its error.

        An interrupt of the caller (Ctrl-C) cancels it, waits until it has ended, and goes on.
        """
        ended: concurrent.futures.Future[Result] = concurrent.futures.Future()
        tasks: list[asyncio.Task[Result]] = []

        def begin() -> None:
            tasks.append(self._loop.create_task(work))
            tasks[0].add_done_callback(partial(_settle, ended))

        def cancel() -> None:
            for task in tasks:
                task.cancel()

        self._loop.call_soon_threadsafe(begin)
        try:
            while not ended.done():  # a wait without end is not interrupted on every system
                concurrent.futures.wait([ended], _LOOK_S)
                if not (tasks or self._thread.is_alive()):  # closed before this had begun
                    work.close()
                    ended.set_exception(concurrent.futures.CancelledError())
            return ended.result()
        except BaseException:
            if not ended.done():
                self._loop.call_soon_threadsafe(cancel)
                concurrent.futures.wait([ended], _CANCEL_S)
            raise

    def close(self, last: Coroutine[Any, Any, None]) -> None:
        """Cancel what runs, run `last`, and end the thread. Call it once."""
        if threading.current_thread() is self._thread:  # the garbage collector may call from there
            threading.Thread(target=self.close, args=(last,), daemon=True).start()
            return
        self.run(_cancel_others())
        self.run(last)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(_JOIN_S)
        if not self._thread.is_alive():
            self._loop.close()


async def _cancel_others() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    for task in others:
        task.cancel()
    if others:
        await asyncio.wait(others, timeout=_CANCEL_S)


def _settle(ended: concurrent.futures.Future[Result], task: asyncio.Task[Result]) -> None:
    if task.cancelled():
        ended.set_exception(concurrent.futures.CancelledError())
    elif (error := task.exception()) is not None:
        ended.set_exception(error)
    else:
        ended.set_result(task.result())
