"""What a pass costs, learnt from passes: seconds as a function of rows. Plain numbers, no clock.

A pass reads all weights whatever it holds, so a few rows cost as much as one, and many cost in
proportion to their number; where one turns into the other differs by model and machine. So nothing
is assumed of the shape but that more rows take no less time: times are kept by size of pass, half
an octave each, and read between two sizes along a straight line. Of each size the median of the
last few passes counts, which a few disturbed ones do not move. What was measured long ago is
forgotten, so that a machine that was slow for a while is found out to be fast again.

Beyond the sizes that were measured the time is taken to be in proportion to the rows. For larger
passes that is more than they can cost, for smaller ones less: both err towards few rows.
"""

from __future__ import annotations

import math
from collections import deque
from statistics import median

_SIZES_PER_OCTAVE = 2
_NUM_SAMPLES = 9  # passes of each size whose median counts
_FRESH_PASSES = 1000  # a size without a pass among that many is forgotten


class _Size:
    """The last passes of about one size."""

    __slots__ = ("_rows", "_seconds", "last_pass")

    def __init__(self) -> None:
        self._rows: deque[int] = deque(maxlen=_NUM_SAMPLES)
        self._seconds: deque[float] = deque(maxlen=_NUM_SAMPLES)
        self.last_pass = 0

    def note(self, num_rows: int, duration_s: float, num_passes: int) -> None:
        self._rows.append(num_rows)
        self._seconds.append(duration_s)
        self.last_pass = num_passes

    @property
    def point(self) -> tuple[float, float]:
        """(rows, seconds) of a typical pass."""
        return median(self._rows), median(self._seconds)


class PassCost:
    """Pass times of one engine. Noting a pass is cheap; asking after one sorts the sizes anew."""

    def __init__(self) -> None:
        self._sizes: dict[int, _Size] = {}
        self._known_points: list[tuple[float, float]] | None = None
        self._num_passes = 0

    def note(self, num_rows: int, duration_s: float) -> None:
        """A pass of `num_rows` rows, at least 1, took `duration_s`."""
        self._num_passes += 1
        index = round(_SIZES_PER_OCTAVE * math.log2(num_rows))
        self._sizes.setdefault(index, _Size()).note(num_rows, duration_s, self._num_passes)
        self._known_points = None

    @property
    def _points(self) -> list[tuple[float, float]]:
        """(rows, seconds) of the sizes, both rising."""
        if self._known_points is None:
            oldest = self._num_passes - _FRESH_PASSES
            self._sizes = {i: size for i, size in self._sizes.items() if size.last_pass > oldest}
            self._known_points = []
            slowest_s = 0.0
            for index in sorted(self._sizes):
                rows, seconds = self._sizes[index].point
                slowest_s = max(slowest_s, seconds)
                self._known_points.append((rows, slowest_s))
        return self._known_points

    def is_measured(self, num_rows: int) -> bool:
        """Whether there were passes of this size or of smaller ones."""
        return bool(self._points) and self._points[0][0] <= num_rows

    def seconds(self, num_rows: int) -> float:
        """What a pass of `num_rows` rows takes; 0.0 before the first pass."""
        below = (0.0, 0.0)
        for rows, seconds in self._points:
            if num_rows <= rows:
                share = (num_rows - below[0]) / (rows - below[0])
                return below[1] + share * (seconds - below[1])
            below = (rows, seconds)
        return below[1] * num_rows / below[0] if self._points else 0.0

    def rows_within(self, seconds: float) -> int:
        """The largest pass that takes at most `seconds`; 0 where none is known to."""
        below = (0.0, 0.0)
        for rows, slower_s in self._points:
            if seconds < slower_s:
                share = (seconds - below[1]) / (slower_s - below[1])
                return math.floor(below[0] + share * (rows - below[0]))
            below = (rows, slower_s)
        return math.floor(seconds / below[1] * below[0]) if below[1] > 0.0 else 0
