"""Limits how many sessions a router runs at once, how many may wait, and for how long.

Requests are served first come, first served. A request without room is refused at once with
`Overloaded`. So a client or a load balancer can try elsewhere.

A queue that is too slow counts as full too. A request that would most likely wait in vain is
refused before the wait and not after it. A place becomes free every (mean length of a session) /
`max_sessions`, by Little's law. So the wait of a newcomer is known well enough. For example,
sessions take 10 s and 2 run at once, so one ends every 5 s. A newcomer to a queue of 3 expects 20
s. It is refused when that is more than half the longest wait. It is half, because lengths vary, and
an admitted request should rarely time out in the queue after all. Nothing is known until a session
has ended, and only the queue's length counts. The first in the queue is always admitted, or an
unlucky mean would keep a free place empty.

When most requests are refused, a refusal must cost little: `refuse_when_full` is asked before
anything is done for a request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from models.costs.running_mean import running_mean
from models.protocol.errors import Overloaded


class AdmissionControl:
    """Bounds on running and waiting sessions.

    Args:
        max_sessions: sessions that run at once.
        max_queued: sessions that may wait.
        queue_wait_s: seconds one may wait.
        clock: seconds, monotonic.
        on_load: called with how many run and wait, whenever that changes.
    """

    def __init__(
        self,
        *,
        max_sessions: int,
        max_queued: int,
        queue_wait_s: float,
        on_load: Callable[[int, int], None] = lambda num_running, num_waiting: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._slots = asyncio.Semaphore(max_sessions)
        self._max_sessions = max_sessions
        self._max_queued = max_queued
        self._queue_wait_s = queue_wait_s
        self._on_load = on_load
        self._num_excess = 0  # slots that vanish when their sessions end
        self._clock = clock
        self._session_s: float | None = None  # moving mean of how long sessions run
        self.num_queued = 0
        self.num_running = 0

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Wait for a slot, and hold it within the block.

        Raises:
            Overloaded: as many sessions as may wait are waiting, or the wait was too long.
        """
        await self._acquire()
        self._count(running=1)
        began_s = self._clock()
        try:
            yield
        finally:
            self._note_end(self._clock() - began_s)
            self._count(running=-1)
            self._free_slot()

    def refuse_when_full(self) -> None:
        """Raise what `slot` would raise at once for a session that came now.

        Raises:
            Overloaded: it would be refused without a wait.
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
        """Apply other limits from now on. Sessions that run or wait go on, also beyond them."""
        for _ in range(self._max_sessions, max_sessions):
            self._free_slot()
        self._num_excess += max(self._max_sessions - max_sessions, 0)
        while self._num_excess and not self._slots.locked():
            await self._slots.acquire()  # at once
            self._num_excess -= 1
        self._max_sessions = max_sessions
        self._max_queued = max_queued
        self._queue_wait_s = queue_wait_s

    def _free_slot(self) -> None:
        """Pass a slot to the next session that waits, unless there are too many slots."""
        if self._num_excess:
            self._num_excess -= 1
        else:
            self._slots.release()

    def _note_end(self, session_s: float) -> None:
        """Update the mean, which forgets within about as many sessions as run at once."""
        share = 1 / (1 + self._max_sessions)
        self._session_s = running_mean(self._session_s, session_s, share)

    def _expected_wait_s(self) -> float:
        """Return the wait of a newcomer at the end of the queue; 0 while nothing is known."""
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
