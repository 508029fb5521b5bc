"""One policy serves for a lost part of a session: how often, how long, and when it is the end.

A session has one `Recovery` for its target and one for its constraint replica. The window opens
when the part is found missing (or is first asked for) and closes with its next answer. A replica
that grants a lease and is lost again does not close it. Attempts follow each other within it with
growing pauses. A first lease has the lease's limit while replicas are full. If no replica is there
(`NoReplica`), a model loads. A lease waits as for a first token then, or for a fail-over if that is
shorter. So does a session that has lost its replica, for the fail-over's limit.

Refused leases only take time. Lost replicas (`LinkLost`) are counted as well, and no answer resets
the count. A request that brings down its replica, be it in its second round, must not be tried on
every replica. A lease that the replica ended itself is no lost replica.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from models.protocol.errors import LinkLost, NoReplica, ReplicasLost, Unavailable
from router.limits import SessionLimits
from router.remote.losses import PartLosses

_T = TypeVar("_T")


class Recovery:
    """Counts all losses of one part and spaces the attempts to replace it.

    Args:
        what: the part, as the error names it.
        limits: the windows, the pauses and the number of losses.
        losses: is told how long replacements took.
    """

    def __init__(self, what: str, limits: SessionLimits, losses: PartLosses | None = None) -> None:
        self._what = what
        self._limits = limits
        self.losses = PartLosses() if losses is None else losses
        self._lost_s: float | None = None  # when the replica was lost for which there is no other
        self._is_first = True
        self._is_nobody_there = False  # by the last attempt
        self._missing_since: float | None = None
        self._losses: list[LinkLost] = []  # of replicas
        self._backoff = limits.backoff()

    def lease_timeout_s(self) -> float:
        """Return how long to wait for a lease now: the rest of the window, and one short try."""
        return max(self._left_s(), self._limits.rejoin_interval_s)

    def note_running(self) -> None:
        """Note that the session has the part for the first time; a later loss is a fail-over."""
        if self._is_first:
            self._is_first = False
            self._missing_since = None

    def note_answer(self) -> None:
        """Note that the part has answered: it is there, and its next loss opens a new window."""
        self._is_first = False
        self._missing_since = None
        self._backoff.reset()
        self.losses.note_answer()
        if self._lost_s is not None:
            self.losses.note_replaced(asyncio.get_running_loop().time() - self._lost_s)
            self._lost_s = None

    def note_loss(self, error: Unavailable) -> None:
        """Note that the part was lost after an answer; the window opens at its next use."""
        if isinstance(error, LinkLost):
            if error.reason != "ended":
                self._losses.append(error)
            if self._lost_s is None:
                self._lost_s = asyncio.get_running_loop().time()

    def check_losses(self) -> None:
        """Raise `ReplicasLost` where the request has lost as many replicas as it may."""
        if len(self._losses) >= self._limits.max_losses:
            message = (
                f"{self._what} lost {self._times()}, the limit is {self._limits.max_losses}; the "
                f"request was with each when it was lost; at last: {self._losses[-1].message}"
            )
            raise self._told(ReplicasLost(message)) from self._losses[-1]

    async def after(self, error: Unavailable) -> None:
        """Wait until it is time for the next attempt, after one has failed.

        Raises:
            ReplicasLost: too many were lost. Unavailable: the window is over. The message says what
                was lost, how often, the limit.
        """
        self.note_loss(error)
        self.check_losses()
        if not isinstance(error, LinkLost):  # which tells nothing of others
            self._is_nobody_there = isinstance(error, NoReplica)
        left_s = self._left_s()
        if left_s <= 0.0:
            raise self._told(Unavailable(self._complaint(error))) from error
        if self._backoff.num_failures > 0:  # the first attempt follows at once
            await asyncio.sleep(min(self._backoff.pause_s, left_s))
        self._backoff.note_failure()

    async def run(
        self, step: Callable[[], Awaitable[_T]], let_go: Callable[[], Awaitable[None]]
    ) -> _T:
        """Run `step` until the part answers; `let_go` of the lost replica before each repeat.

        Raises:
            Unavailable: a limit is reached, see `after`; whatever else `step` raises.
        """
        while True:
            try:
                answer = await step()
            except Unavailable as error:
                await let_go()
                await self.after(error)
            else:
                self.note_answer()
                return answer

    def _window_s(self) -> float:
        limits = self._limits
        if not self._is_first:
            return limits.failover_s
        if not self._is_nobody_there:
            return limits.queue_wait_s
        return max(limits.queue_wait_s, min(limits.first_token_s, limits.failover_s))

    def _left_s(self) -> float:
        now = asyncio.get_running_loop().time()
        if self._missing_since is None:
            self._missing_since = now
        return max(0.0, self._window_s() - (now - self._missing_since))

    def _told(self, error: Unavailable) -> Unavailable:
        error.retry_after_s = self.losses.retry_after_s()
        return error

    def _times(self) -> str:
        return "once" if len(self._losses) == 1 else f"{len(self._losses)} times"

    def _complaint(self, error: Unavailable) -> str:
        limit = f"within the limit of {self._window_s():g} s"
        if not self._losses:
            return f"no {self._what} {limit}: {error.message}"
        lost = f"{self._what} lost {self._times()}"
        return f"{lost}, no other was there {limit}; at last: {error.message}"
