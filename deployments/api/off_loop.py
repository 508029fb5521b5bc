"""Computing for long bodies, in a thread of its own, so that streams flow on meanwhile.

It has one thread, so that such bodies queue among themselves. Code that keeps Python's lock (a
decoder of JSON, pydantic) stops the event loop for as long. If two such threads ran, the loop might
have to let the other go first. Shorter bodies go first, so that the longest ones delay each other
and no others.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from models.protocol.errors import InternalError, Overloaded

Result = TypeVar("Result")


class OffLoop:
    """Runs one function at a time in a thread of its own.

    Args:
        timeout_s: how long a function may wait for its turn and run; nobody waits for it then.
    """

    def __init__(self, *, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._executor = ThreadPoolExecutor(1, thread_name_prefix="off-loop")
        self._waiting: list[tuple[int, int, asyncio.Future[None]]] = []  # a heap
        self._arrivals = itertools.count()
        self._is_busy = False

    async def run(self, size: int, function: Callable[..., Result], *args: Any) -> Result:
        """Run `function` and return its result.

        If it is cancelled before its turn, it does not run.

        Args:
            size: what it has to look at, in bytes; the smallest of those that wait has its turn.

        Raises:
            Overloaded: it took too long to come to its turn and to an end.
        """
        try:
            async with asyncio.timeout(self._timeout_s):
                await self._turn(size)
                try:
                    loop = asyncio.get_running_loop()
                    return await loop.run_in_executor(self._executor, _ended, function, args)
                finally:
                    self._pass_on()
        except TimeoutError:
            raise Overloaded(
                f"too many long bodies are being read: this one of {size} bytes was not done "
                f"within {self._timeout_s:g} s"
            ) from None

    async def _turn(self, size: int) -> None:
        if not self._is_busy:
            self._is_busy = True
            return
        turn = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiting, (size, next(self._arrivals), turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # it had just come
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._is_busy = False


def _ended(function: Callable[..., Result], args: tuple[Any, ...]) -> Result:
    try:
        return function(*args)
    except StopIteration as error:  # a future cannot carry it, and would never be done
        raise InternalError("an iterator ended early") from error
