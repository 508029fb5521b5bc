"""Measured time as a function of a count: rows of a pass, sessions in a draft step.

Nothing is assumed of the shape but that more takes no less time. Times are kept by size. Each count
up to 8 has a cell of its own. A cell of larger ones spans about 15%. A cell keeps the median of its
last few counts. Read out, the cells form a curve that never falls, straight between them.

Medians are used because passes vary. Some take several times as long as usual, and a long context
makes those with prompts ever slower. A mean follows such passes. A promise made by it
(`prefill_budget`) is broken by as much, and k chosen by it is no better.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field
from statistics import median

_EXACT_COUNTS = 8
_CELL_WIDTH = math.log(1.15)
_NUM_SAMPLES = 9  # samples of each cell
_FRESH = 1000  # measurements; a cell without one among so many is stale
_HALF_LIFE = 10  # measurements without one of its own after which a cell weighs half
# A curve is made anew after so many, or after an eighth of all: it takes 5 to 12 us.
_CURVE_LASTS = 8


@dataclass(slots=True)
class _Cell:
    """The last measurements of about one count."""

    counts: deque[int] = field(default_factory=lambda: deque(maxlen=_NUM_SAMPLES))
    times: deque[float] = field(default_factory=lambda: deque(maxlen=_NUM_SAMPLES))
    count: float = 0.0  # medians of these
    time: float = 0.0
    measured_at: int = 0  # number of the last one

    def note(self, count: int, time: float, number: int) -> None:
        self.counts.append(count)
        self.times.append(time)
        self.count, self.time = median(self.counts), median(self.times)
        self.measured_at = number


class CostTable:
    """Typical times by count; `at` is a curve through them that never falls."""

    def __init__(self) -> None:
        self._cells: dict[int, _Cell] = {}
        self._known_curve: list[tuple[float, float]] | None = None
        self._curve_made_at = 0  # number of the last measurement in it
        self._slope = 0.0
        self._num_measurements = 0

    @property
    def is_empty(self) -> bool:
        """True if nothing was measured yet."""
        return not self._cells

    def observe(self, count: int, time: float) -> None:
        """Take in one measurement for `count`, at least 1."""
        self._num_measurements += 1
        key, number = _cell_key(count), self._num_measurements
        if number - self._curve_made_at > min(_CURVE_LASTS, number // 8) or key not in self._cells:
            self._known_curve = None
        self._cells.setdefault(key, _Cell()).note(count, time, number)

    def at(self, count: float) -> float:
        """Expected time for `count`, in the unit of the measurements; 0.0 without any.

        Beyond the measured counts the curve goes on along its mean slope. So a count that was never
        tried looks worth trying.
        """
        curve = self._curve
        if not curve:
            return 0.0
        if count <= curve[0][0]:
            first_time = curve[0][1]
            return max(first_time - self._slope * (curve[0][0] - count), 0.1 * first_time)
        right = bisect_right(curve, count, key=lambda point: point[0])
        if right == len(curve):
            return curve[-1][1] + self._slope * (count - curve[-1][0])
        (low, low_time), (high, high_time) = curve[right - 1], curve[right]
        return low_time + (high_time - low_time) * (count - low) / (high - low)

    def count_within(self, time: float) -> int:
        """Return the largest count that takes at most `time`; 0 if none is known to.

        A promise depends on it. So the time beyond the measured counts is taken to be in proportion
        to the count. That is more than it can be.
        """
        low, low_time = 0.0, 0.0
        for high, high_time in self._curve:
            if time < high_time:
                share = (time - low_time) / (high_time - low_time)
                return math.floor(low + share * (high - low))
            low, low_time = high, high_time
        return math.floor(time / low_time * low) if low_time > 0.0 else 0

    def is_measured(self, count: int) -> bool:
        """Returns whether this count or a smaller one was measured."""
        return bool(self._curve) and self._curve[0][0] <= count

    @property
    def _curve(self) -> list[tuple[float, float]]:
        """Points (count, time), both rising."""
        if self._known_curve is None:
            self._forget()
            self._known_curve = self._rising()
            self._slope = _slope(self._known_curve)
            self._curve_made_at = self._num_measurements
        return self._known_curve

    def _forget(self) -> None:
        """Forget stale cells that no pass can be as dear as.

        Twice the count takes at most twice the time. If a stale value is dearer, in proportion,
        than a fresh smaller count, it was a hiccup. Or the machine was slow then. No pass would
        measure such a count again.
        """
        least_per_count = math.inf
        for key in sorted(self._cells):
            cell = self._cells[key]
            per_count = cell.time / cell.count
            if self._num_measurements - cell.measured_at < _FRESH:
                least_per_count = min(least_per_count, per_count)
            elif per_count > least_per_count:
                del self._cells[key]

    def _rising(self) -> list[tuple[float, float]]:
        """Points (count, time) of the closest curve that never falls, by weighted squares.

        For example cells of 1, 4 and 8 rows have 10, 8 and 12 ms, measured equally lately. The
        first two fall, so both get their mean of 9 ms. The curve is (1, 9), (4, 9), (8, 12). Were
        the first one measured just now and the second one long ago, both would get about 10.
        """
        blocks: list[tuple[float, float, list[float]]] = []  # mean time, weight, counts
        for key in sorted(self._cells):
            cell = self._cells[key]
            age = self._num_measurements - cell.measured_at
            mean, weight = cell.time, len(cell.times) / (_HALF_LIFE + age)
            counts = [cell.count]
            while blocks and blocks[-1][0] >= mean:
                before, before_weight, before_counts = blocks.pop()
                mean = (mean * weight + before * before_weight) / (weight + before_weight)
                weight += before_weight
                counts = before_counts + counts
            blocks.append((mean, weight, counts))
        return [(count, mean) for mean, _, counts in blocks for count in counts]


def _cell_key(count: int) -> int:
    if count <= _EXACT_COUNTS:
        return count
    return _EXACT_COUNTS + 1 + int(math.log(count / (_EXACT_COUNTS + 1)) / _CELL_WIDTH)


def _slope(curve: list[tuple[float, float]]) -> float:
    """Return the slope of the least-squares line through the points, or 0 if it is negative."""
    if len(curve) < 2:
        return 0.0
    mean_count = sum(count for count, _ in curve) / len(curve)
    mean_time = sum(time for _, time in curve) / len(curve)
    spread = sum((count - mean_count) ** 2 for count, _ in curve)
    covariance = sum((count - mean_count) * (time - mean_time) for count, time in curve)
    return max(0.0, covariance / spread)
