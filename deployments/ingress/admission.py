"""How many sessions one router runs at once, how many may wait for that, and for how long.

Wraps a `Generator` and is one. First come, first served; full is answered at once with
`Overloaded`, so that a client or a balancer can try elsewhere.

Full is also a queue that is too slow: whoever would most likely wait in vain is better told at once
than after the wait. By Little's law a place becomes free every (mean length of a session) /
`max_sessions`, so the wait of a newcomer is known well enough: it is turned away when that is more
than half the longest wait. Half, because lengths vary, and who is let in should rarely be turned
away after all. Until a session has ended nothing is known, and only the queue's length counts. The
first in the queue is always let in, or an unlucky mean would keep a free place empty.

When most are turned away, that must cost little: `refuse_when_full` is asked before anything is
done for a request.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import aclosing, asynccontextmanager
from typing import cast

from models.protocol.errors import Overloaded
from router.types import Delta, Detokenizer, Finished, GenerationRequest, Generator


class AdmittingGenerator:
    """Admits sessions to `generator`, within bounds.

    Args:
        generator: what runs the sessions.
        max_sessions: sessions that run at once.
        max_queued: sessions that may wait.
        queue_wait_s: seconds one may wait.
        clock: seconds, monotonic.
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
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._generator = generator
        self._slots = asyncio.Semaphore(max_sessions)
        self._max_sessions = max_sessions
        self._max_queued = max_queued
        self._queue_wait_s = queue_wait_s
        self._on_load = on_load
        self._num_excess = 0  # places that go when their sessions end
        self._clock = clock
        self._session_s: float | None = None  # moving mean of how long sessions run
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

    def refuse_when_full(self) -> None:
        """Say now what `generate` would say of a request that came now.

        Raises:
            Overloaded: it would be turned away at once.
        """
        if not self._slots.locked():
            return
        wait_s = self._expected_wait_s()
        if self.num_queued >= self._max_queued:
            raise Overloaded(
                f"{self._max_sessions} sessions are running and {self.num_queued} are waiting, "
                f"the limit is {self._max_queued}",
                retry_after_s=wait_s,
            )
        promised_s = self._queue_wait_s / 2
        if self.num_queued > 0 and wait_s > promised_s:
            raise Overloaded(
                f"{self._max_sessions} sessions are running and {self.num_queued} are waiting; a "
                f"place is expected in {wait_s:.1f} s, the limit is {promised_s:g} s",
                retry_after_s=wait_s,
            )

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
        began_s = self._clock()
        try:
            yield
        finally:
            self._note_end(self._clock() - began_s)
            self._count(running=-1)
            self._give_back()

    def _note_end(self, session_s: float) -> None:
        """The mean forgets within about as many sessions as run at once."""
        if self._session_s is None:
            self._session_s = session_s
        else:
            self._session_s += (session_s - self._session_s) / (1 + self._max_sessions)

    def _expected_wait_s(self) -> float:
        """Of a newcomer behind those who wait; 0 while nothing is known."""
        return (self.num_queued + 1) * (self._session_s or 0.0) / self._max_sessions

    def _count(self, *, running: int = 0, waiting: int = 0) -> None:
        self.num_running += running
        self.num_queued += waiting
        self._on_load(self.num_running, self.num_queued)

    async def _acquire(self) -> None:
        if not self._slots.locked():
            await self._slots.acquire()  # at once
            return
        self.refuse_when_full()
        self._count(waiting=1)
        try:
            async with asyncio.timeout(self._queue_wait_s):
                await self._slots.acquire()
        except TimeoutError:
            raise Overloaded(
                f"no place within {self._queue_wait_s} s; {self._max_sessions} are running",
                retry_after_s=self._expected_wait_s(),
            ) from None
        finally:
            self._count(waiting=-1)
