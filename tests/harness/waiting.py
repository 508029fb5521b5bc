"""Waits for another process or thread, which says nothing itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

_LIMIT_S = 30.0


async def wait_until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(_LIMIT_S):
        while not condition():  # noqa: ASYNC110  # it is about another process
            await asyncio.sleep(0.01)


def block_until(condition: Callable[[], bool]) -> None:
    """Wait as `wait_until` does, where no event loop runs."""
    give_up_at = time.monotonic() + _LIMIT_S
    while not condition():
        assert time.monotonic() < give_up_at, "condition did not come true"
        time.sleep(0.05)
