"""How many sessions one router runs at once, how many may wait for that, and for how long.

Wraps a `Generator` and is one. First come, first served; full is answered at once with
`Overloaded`, so that a client or a balancer can try elsewhere.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import cast

from models.errors import Overloaded
from router.generation import Delta, Detokenizer, Finished, GenerationRequest, Generator


class AdmittingGenerator:
    """Admits sessions to `generator`, within bounds.

    Args:
        generator: what runs the sessions.
        max_sessions: sessions that run at once.
        max_queued: sessions that may wait.
        queue_wait_s: seconds one may wait.
        on_load: told how many run and wait, whenever that changes.
    """

    def __init__(
        self,
        generator: Generator,
        *,
        max_sessions: int,
        max_queued: int,
        queue_wait_s: float,
        on_load: Callable[[int, int], None] = lambda num_running, num_waiting: None,
    ) -> None:
        self._generator = generator
        self._slots = asyncio.Semaphore(max_sessions)
        self._max_sessions = max_sessions
        self._max_queued = max_queued
        self._queue_wait_s = queue_wait_s
        self._on_load = on_load
        self._num_excess = 0  # places that go when their sessions end
        self.num_queued = 0
        self.num_running = 0
        self.last_item_s = -math.inf  # time.monotonic when any session last got something

    async def generate(
        self, request: GenerationRequest, detokenizer: Detokenizer
    ) -> AsyncGenerator[Delta | Finished, None]:
        """See `generation.Generator.generate`.

        Raises:
            Overloaded: as many sessions as may wait are waiting, or the wait was too long.
        """
        async with self._slot():
            items = self._generator.generate(request, detokenizer)
            async with aclosing(cast("AsyncGenerator[Delta | Finished, None]", items)):
                async for item in items:
                    self.last_item_s = time.monotonic()
                    yield item

    async def set_limits(self, *, max_sessions: int, max_queued: int, queue_wait_s: float) -> None:
        """Other limits from now on. Whoever runs or waits goes on, also beyond them."""
        for _ in range(self._max_sessions, max_sessions):
            self._give_back()
        self._num_excess += max(self._max_sessions - max_sessions, 0)
        while self._num_excess and not self._slots.locked():
            await self._slots.acquire()  # at once
            self._num_excess -= 1
        self._max_sessions = max_sessions
        self._max_queued = max_queued
        self._queue_wait_s = queue_wait_s

    def _give_back(self) -> None:
        """One place more, for whoever waits, unless there are too many."""
        if self._num_excess:
            self._num_excess -= 1
        else:
            self._slots.release()

    @asynccontextmanager
    async def _slot(self) -> AsyncIterator[None]:
        await self._acquire()
        self._count(running=1)
        try:
            yield
        finally:
            self._count(running=-1)
            self._give_back()

    def _count(self, *, running: int = 0, waiting: int = 0) -> None:
        self.num_running += running
        self.num_queued += waiting
        self._on_load(self.num_running, self.num_queued)

    async def _acquire(self) -> None:
        if not self._slots.locked():
            await self._slots.acquire()  # at once
            return
        if self.num_queued >= self._max_queued:
            raise Overloaded(
                f"{self._max_sessions} sessions are running and {self.num_queued} are waiting, "
                f"the limit is {self._max_queued}"
            )
        self._count(waiting=1)
        try:
            async with asyncio.timeout(self._queue_wait_s):
                await self._slots.acquire()
        except TimeoutError:
            raise Overloaded(
                f"no session ended within {self._queue_wait_s} s; {self._max_sessions} are running"
            ) from None
        finally:
            self._count(waiting=-1)
