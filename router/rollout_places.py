"""Limits the look-aheads' share of the targets: places for roll-outs, rows beside other streams.

Places keep room for sessions: a request takes all of its own before it begins. Rows keep the pace
of ordinary streams. A look-ahead takes one for each of its rows in a pass. All together take no
more rows than the streams can bear. The order of roll-outs changes no text.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager

from models.protocol.errors import InvalidRequest, Overloaded
from router.planning.adaptive import RouterPlanner

_MOST_ROWS = 1 << 12  # that are looked for: more than any pass has


class _Turns:
    """Units that are taken together or not at all, in the order in which they are asked for."""

    def __init__(self) -> None:
        self.num_taken = 0
        self._turn = asyncio.Lock()  # held by the one that waits
        self._changed = asyncio.Event()

    @asynccontextmanager
    async def held(
        self, number: int, has_room: Callable[[], bool], timeout_s: float, why: Callable[[], str]
    ) -> AsyncGenerator[None, None]:
        """Hold so many within the block; Overloaded with `why`: there was no room in time."""
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                while not has_room():
                    self._changed.clear()
                    await self._changed.wait()
                self.num_taken += number
        except TimeoutError:
            raise Overloaded(why()) from None
        try:
            yield
        finally:
            self.num_taken -= number
            self.look_again()

    def look_again(self) -> None:
        """Have who waits ask again whether there is room."""
        self._changed.set()


class RolloutPlaces:
    """The shared limits of all look-aheads of one router.

    Args:
        limit: places of roll-outs.
        max_slowdown: how many times longer rows of look-aheads may make a pass of other streams.
    """

    def __init__(self, limit: int = 32, max_slowdown: float = 1.5) -> None:
        self._limit = limit
        self._max_slowdown = max_slowdown
        self._places, self._rows = _Turns(), _Turns()
        self._num_streams = 0

    @asynccontextmanager
    async def held(self, num_places: int, timeout_s: float) -> AsyncGenerator[None, None]:
        """Hold places within the block.

        Raises:
            InvalidRequest: there will never be as many.
            Overloaded: they did not come free within `timeout_s`.
        """
        if num_places > self._limit:
            raise InvalidRequest(
                f"lookahead.candidates: at most {self._limit} are allowed here "
                f"(router.max_rollouts), got {num_places}",
                param="lookahead.candidates",
            )

        def has_room() -> bool:
            return self._places.num_taken + num_places <= self._limit

        def why() -> str:
            return (
                f"{num_places} roll-outs found no place within {timeout_s:g} s, "
                f"{self._limit} may run at once (router.max_rollouts)"
            )

        async with self._places.held(num_places, has_room, timeout_s, why):
            yield

    @asynccontextmanager
    async def beside(self) -> AsyncGenerator[None, None]:
        """Run an ordinary stream within the block.

        Its pace is kept.
        """
        self._num_streams += 1
        try:
            yield
        finally:
            self._num_streams -= 1
            self._rows.look_again()

    @asynccontextmanager
    async def rows(
        self, num_rows: int, planner: RouterPlanner, timeout_s: float
    ) -> AsyncGenerator[None, None]:
        """Have rows in passes within the block; one look-ahead may always have its own.

        Raises:
            Overloaded: they did not come free within `timeout_s`.
        """

        def has_room() -> bool:
            num_taken = self._rows.num_taken
            return num_taken == 0 or num_taken + num_rows <= self.max_rows(planner)

        def why() -> str:
            return (
                f"a look-ahead found no room in passes beside {self._num_streams} streams within "
                f"{timeout_s:g} s (router.max_rollout_slowdown)"
            )

        async with self._rows.held(num_rows, has_room, timeout_s, why):
            yield

    def max_rows(self, planner: RouterPlanner) -> float:
        """Rows of look-aheads that the streams now running put up with, by what passes take.

        Any number is allowed without streams, and before a pass of theirs was measured. The time of
        more rows than were ever tried is extrapolated, so that they are tried. Streams count as if
        all were on one target, which is the least that can be allowed.
        """
        num_others = self._num_streams + planner.num_draft_rows
        alone_ms = planner.costs.pass_ms(num_others)
        if not self._num_streams or alone_ms <= 0.0:
            return math.inf
        low, high = 0, _MOST_ROWS  # the curve of passes never falls
        while low < high:
            more = (low + high + 1) // 2
            if planner.costs.pass_ms(num_others + more) <= self._max_slowdown * alone_ms:
                low = more
            else:
                high = more - 1
        return low
