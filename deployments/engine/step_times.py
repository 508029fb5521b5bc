"""Tells a step that most likely hangs: it takes far longer than its like took.

Its like are passes of about as many rows. A long prompt's takes many times what one of single
tokens does. The first passes of a kind may compile kernels, so a few must be known. Until then
nothing is said, and `step_timeout_s` alone counts.
"""

from __future__ import annotations

import math
from collections import deque

_NUM_KEPT = 128  # newest steps of each size
_NUM_KNOWN = 32  # steps of its size, or of a larger one, before one can be too long
_SHARE = 0.99  # of those known steps are shorter than
_TIMES = 5.0  # this part of what a step may take
_MAX_SIZE = 32  # sizes double


class StepTimes:
    """Durations of steps by their rows. `note` is the engine thread's, `most_s` anybody's."""

    def __init__(self) -> None:
        self._known: tuple[deque[float], ...] = tuple(
            deque(maxlen=_NUM_KEPT) for _ in range(_MAX_SIZE)
        )

    def note(self, num_rows: int, duration_s: float) -> None:
        """Take in a step that has ended."""
        self._known[_size(num_rows)].append(duration_s)

    def most_s(self, num_rows: int) -> float:
        """Return how long a step of so many rows may take, in seconds; infinite: not known."""
        for known in self._known[_size(num_rows) :]:
            durations = sorted(known.copy())
            if len(durations) >= _NUM_KNOWN:
                return _TIMES * durations[int(_SHARE * len(durations))]
        return math.inf


def _size(num_rows: int) -> int:
    return min(num_rows.bit_length(), _MAX_SIZE - 1)
