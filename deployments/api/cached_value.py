"""A value that is costly to make and may be a moment old: concurrent callers share one making."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class CachedValue(Generic[Value]):
    """Makes a value when it is asked for, at most one at a time, and keeps it.

    Args:
        make: makes it; waits with a limit of its own.
        keep_s: how long a value is kept.
        clock: seconds, monotonic.
    """

    def __init__(
        self,
        make: Callable[[], Awaitable[Value]],
        *,
        keep_s: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._keep_s = keep_s
        self._clock = clock
        self._lock = asyncio.Lock()
        self._last: tuple[float, Value] | None = None

    async def get(self) -> Value:
        """Return the value, at most `keep_s` old.

        An error of `make` is raised, and the next call tries again.
        """
        async with self._lock:
            if self._last is None or self._clock() - self._last[0] >= self._keep_s:
                value = await self._make()
                self._last = (self._clock(), value)
            return self._last[1]
