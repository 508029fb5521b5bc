"""Places for roll-outs: how many of them a router runs at once, so that they leave targets room."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from models.protocol.errors import InvalidRequest, Overloaded


class RolloutPlaces:
    """A count of places that requests take together or not at all, in the order they come.

    Args:
        limit: places.
    """

    def __init__(self, limit: int = 32) -> None:
        self._limit = self._num_free = limit
        self._turn = asyncio.Lock()  # of who waits for places
        self._freed = asyncio.Event()

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
        try:
            async with asyncio.timeout(timeout_s), self._turn:
                while self._num_free < num_places:
                    self._freed.clear()
                    await self._freed.wait()
                self._num_free -= num_places
        except TimeoutError:
            raise Overloaded(
                f"{num_places} roll-outs found no place within {timeout_s:g} s, "
                f"{self._limit} may run at once (router.max_rollouts)"
            ) from None
        try:
            yield
        finally:
            self._num_free += num_places
            self._freed.set()
