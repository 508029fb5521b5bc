"""An event loop whose clock jumps to the next timer instead of waiting for it.

Code that asks the loop for the time sees waits of hours pass at once and in order. So it is on a
busy machine as well: computing takes one microsecond a turn of the loop. Threads, sockets and
processes know nothing of this clock. A wait for one of them is an error where no timer is set.
Sources of the idea: `trio.testing.MockClock`, `looptime`.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Callable

_START_S = 1000.0  # not 0, which code might take for "never"
_TURN_S = 1e-6  # so that who waits for less than a float can tell gets there all the same


class _JumpingSelector(selectors.DefaultSelector):
    """Reports what is ready now; where that is nothing, `advance`s the clock to the next timer."""

    def __init__(self, advance: Callable[[float], None]) -> None:
        super().__init__()
        self._advance = advance

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if not ready and timeout is None:
            raise RuntimeError("every task waits, and no timer is set that could wake one")
        self._advance(_TURN_S if ready or timeout is None else max(_TURN_S, timeout))
        return ready


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """A loop with virtual time; `time()` begins at 1000 s and moves by timers alone.

    Raises:
        RuntimeError: from within `run_until_complete`, when all tasks wait and no timer is left:
            where a real loop would hang for ever.
    """

    def __init__(self) -> None:
        self._now_s = _START_S
        super().__init__(_JumpingSelector(self._advance))

    def time(self) -> float:
        """Seconds on the virtual clock."""
        return self._now_s

    def _advance(self, interval_s: float) -> None:
        self._now_s += interval_s
