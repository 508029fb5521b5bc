"""Time that passes only while somebody is there."""

from __future__ import annotations

from collections.abc import Callable


class BusyClock:
    """Seconds that have passed while there were sessions; it stands still until `start`.

    Measurements grow old with use. Idle time says nothing against them.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._passed_s = 0.0
        self._began_s: float | None = None

    def __call__(self) -> float:
        """Return the time that has passed."""
        return self._passed_s + (0.0 if self._began_s is None else self._clock() - self._began_s)

    def start(self) -> None:
        """Let it run, if it stands still."""
        if self._began_s is None:
            self._began_s = self._clock()

    def stop(self) -> None:
        """Let it stand still."""
        self._passed_s, self._began_s = self(), None
