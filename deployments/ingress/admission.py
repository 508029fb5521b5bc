"""Limits how many sessions a router runs at once, how many may wait, and for how long.

Clients take turns: a free place goes to the next client that waits. Within a client whoever came
first has it. A client at its own limit keeps nobody else waiting. Nor does one that has half of all
places: it leaves the last `reserved` ones to others. A request without room is refused
at once with `Overloaded`. So a client or a load balancer can try elsewhere. In a full queue the
client with the most requests loses its newest to a newcomer of another client. A client that runs
less than an even share `goes_first`: engines read its prompts before those of others.

A queue that is too slow counts as full too. A request that would most likely wait in vain is
refused before the wait and not after it. A place becomes free every (mean length of a session) /
`max_sessions`, by Little's law. So the wait of a newcomer is known well enough. For example,
sessions take 10 s and 2 run at once, so one ends every 5 s. A newcomer to a queue of 3 of its own
client expects 20 s. It is refused when that is more than half the longest wait. It is half, because
lengths vary, and an admitted request should rarely time out in the queue after all. Nothing is
known until a session has ended, and only the queue's length counts. The first of a client is always
admitted, or an unlucky mean would keep a free place empty.

When most requests are refused, a refusal must cost little: `refuse_when_full` is asked before
anything is done for a request.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from deployments.api.keys import ANYBODY, Tenant
from models.costs.running_mean import running_mean
from models.protocol.errors import Overloaded, Unavailable

_Waiter = tuple[Tenant, asyncio.Future[None]]


class AdmissionControl:
    """Bounds on running and waiting sessions.

    Args:
        max_sessions: sessions that run at once.
        max_queued: sessions that may wait.
        queue_wait_s: seconds one may wait.
        reserved: places that a client does not get while it has half of all.
        clock: seconds, monotonic.
        on_load: called with how many run and wait, whenever that changes.
    """

    def __init__(
        self,
        *,
        max_sessions: int,
        max_queued: int,
        queue_wait_s: float,
        reserved: int = 0,
        on_load: Callable[[int, int], None] = lambda num_running, num_waiting: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_sessions = max_sessions
        self._max_queued = max_queued
        self._queue_wait_s = queue_wait_s
        self._reserved = reserved
        self._on_load = on_load
        self._clock = clock
        self._session_s: float | None = None  # moving mean of how long sessions run
        self._running: Counter[str] = Counter()  # by client
        self._queues: dict[str, deque[_Waiter]] = {}  # by client; the first has the next turn
        self.num_queued = 0
        self.num_running = 0

    @asynccontextmanager
    async def slot(
        self, tenant: Tenant = ANYBODY, *, tells_length: bool = True
    ) -> AsyncIterator[None]:
        """Wait for a slot, and hold it within the block.

        Args:
            tenant: whose it is.
            tells_length: whether it is a session, by whose length waits are foretold.

        Raises:
            Overloaded: as many sessions as may wait are waiting, or the wait was too long.
        """
        if self._has_room(tenant):
            self._take(tenant)
        else:
            await self._wait(tenant)
        began_s = self._clock()
        try:
            yield
        except Unavailable:  # it has waited for what was away
            tells_length = False
            raise
        finally:
            if tells_length:
                self._note_end(self._clock() - began_s)
            self._give_back(tenant)

    def goes_first(self, tenant: Tenant) -> bool:
        """Return whether others run so much that the client has less than an even share."""
        num_clients = len({*self._running, tenant.name})
        return self._running[tenant.name] * num_clients < self.num_running

    def refuse_when_full(self, tenant: Tenant = ANYBODY) -> None:
        """Raise what `slot` would raise at once for a session that came now.

        Raises:
            Overloaded: it would be refused without a wait.
        """
        if self._has_room(tenant):
            return
        wait_s, num_own = self._expected_wait_s(tenant), len(self._queues.get(tenant.name, ()))
        if self.num_queued >= self._max_queued and self._yielding(num_own) is None:
            raise Overloaded(
                f"{self._held_up(tenant)} and {self.num_queued} are waiting, "
                f"the limit is {self._max_queued}",
                retry_after_s=wait_s,
            )
        promised_s = self._queue_wait_s / 2
        if num_own > 0 and wait_s > promised_s:
            raise Overloaded(
                f"{self._held_up(tenant)} and {self.num_queued} are waiting; a "
                f"place is expected in {wait_s:.1f} s, the limit is {promised_s:g} s",
                retry_after_s=wait_s,
            )

    def set_limits(
        self, *, max_sessions: int, max_queued: int, queue_wait_s: float, reserved: int
    ) -> None:
        """Apply other limits from now on. Sessions that run or wait go on, also beyond them."""
        self._max_sessions = max_sessions
        self._max_queued = max_queued
        self._queue_wait_s = queue_wait_s
        self._reserved = reserved
        self._serve_waiting()

    # --- places -------------------------------------------------------------------------------

    def _has_room(self, tenant: Tenant) -> bool:
        """Return whether the client may have a place now; whoever waits could not have it."""
        num_free = self._max_sessions - self.num_running
        return num_free > self._left_to_others(tenant) and not self._is_at_its_limit(tenant)

    def _left_to_others(self, tenant: Tenant) -> int:
        has_half = 2 * self._running[tenant.name] >= self._max_sessions
        return self._reserved if has_half else 0

    def _is_at_its_limit(self, tenant: Tenant) -> bool:
        limit = tenant.max_sessions
        return limit is not None and self._running[tenant.name] >= limit

    def _take(self, tenant: Tenant) -> None:
        self._running[tenant.name] += 1
        self._count(running=1)

    def _give_back(self, tenant: Tenant) -> None:
        self._running[tenant.name] -= 1
        if not self._running[tenant.name]:
            del self._running[tenant.name]  # clients come and go
        self._count(running=-1)
        self._serve_waiting()

    def _serve_waiting(self) -> None:
        """Give free places to those who wait, a client after the other."""
        while self.num_running < self._max_sessions:
            name = next((n for n, q in self._queues.items() if self._has_room(q[0][0])), None)
            if name is None:
                return
            queue = self._queues.pop(name)
            tenant, future = queue.popleft()
            if queue:
                self._queues[name] = queue  # its next turn is behind all others
            self._count(waiting=-1)
            if not future.done():  # else whoever waited has left, and has not run since
                self._take(tenant)
                future.set_result(None)

    # --- the queue ----------------------------------------------------------------------------

    async def _wait(self, tenant: Tenant) -> None:
        self.refuse_when_full(tenant)
        if self.num_queued >= self._max_queued:
            self._turn_away(len(self._queues.get(tenant.name, ())))
        waiter = tenant, asyncio.get_running_loop().create_future()
        self._queues.setdefault(tenant.name, deque()).append(waiter)
        self._count(waiting=1)
        try:
            async with asyncio.timeout(self._queue_wait_s):
                await waiter[1]
        except TimeoutError:
            self._leave(waiter)
            raise Overloaded(
                f"no place within {self._queue_wait_s} s; {self._held_up(tenant)}",
                retry_after_s=self._expected_wait_s(tenant),
            ) from None
        except asyncio.CancelledError:
            self._leave(waiter)
            raise

    def _leave(self, waiter: _Waiter) -> None:
        """Take back a wait that ended otherwise; a place that it was just given goes on."""
        tenant, future = waiter
        if future.done() and not future.cancelled():
            if future.exception() is None:
                self._give_back(tenant)
            return
        queue = self._queues.get(tenant.name)
        if queue is not None and waiter in queue:
            self._remove(waiter)

    def _remove(self, waiter: _Waiter) -> None:
        name = waiter[0].name
        self._queues[name].remove(waiter)
        if not self._queues[name]:
            del self._queues[name]
        self._count(waiting=-1)

    def _yielding(self, num_own: int) -> str | None:
        """Return the client whose newest goes for a newcomer's sake; None: nobody's."""
        name = max(self._queues, key=lambda name: len(self._queues[name]), default=None)
        return name if name is not None and len(self._queues[name]) > num_own + 1 else None

    def _turn_away(self, num_own: int) -> None:
        name = self._yielding(num_own)
        if name is None:
            return
        tenant, future = waiter = self._queues[name][-1]
        self._remove(waiter)
        future.set_exception(
            Overloaded(
                f"{self._held_up(tenant)} and {self.num_queued + 1} are waiting, the limit is "
                f"{self._max_queued}, which clients share",
                retry_after_s=self._expected_wait_s(tenant),
            )
        )

    def _held_up(self, tenant: Tenant) -> str:
        """Say what a session waits for."""
        if self._is_at_its_limit(tenant):
            return f"{self._running[tenant.name]} sessions of {tenant.name} are running"
        if kept := self._left_to_others(tenant):
            return (
                f"{self._running[tenant.name]} of {self._max_sessions} sessions are of "
                f"{tenant.name}, the last {kept} places are kept for others"
            )
        return f"{self.num_running} sessions are running"

    def _expected_wait_s(self, tenant: Tenant) -> float:
        """Return the wait of a client's newcomer; 0 while nothing is known."""
        session_s = self._session_s or 0.0
        turn = len(self._queues.get(tenant.name, ())) + 1
        others = (len(q) for name, q in self._queues.items() if name != tenant.name)
        wait_s = (turn + sum(min(turn, number) for number in others)) * session_s
        wait_s /= self._max_sessions - self._left_to_others(tenant)
        if self._is_at_its_limit(tenant):
            wait_s = max(wait_s, turn * session_s / (tenant.max_sessions or 1))
        return wait_s

    def _note_end(self, session_s: float) -> None:
        """Update the mean, which forgets within about as many sessions as run at once."""
        share = 1 / (1 + self._max_sessions)
        self._session_s = running_mean(self._session_s, session_s, share)

    def _count(self, *, running: int = 0, waiting: int = 0) -> None:
        self.num_running += running
        self.num_queued += waiting
        self._on_load(self.num_running, self.num_queued)
