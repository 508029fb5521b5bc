"""Measured time as a function of a count: rows of a pass, sessions in a draft step.

A cell per count (counts beyond 8 share cells about 15% wide) holds a running mean. Read out, the
cells form a curve that never falls (pool adjacent violators), straight between cells and beyond
them. A measurement moves its own cell, and a little of it, in proportion, all others: a machine
that grows slower grows slower for every count, but many passes of one size must not make the
others look free.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from dataclasses import dataclass

_EXACT_COUNTS = 8
_CELL_WIDTH = math.log(1.15)
_OWN_SHARE = 0.05  # weight of a measurement in its cell once the cell has seen 20
_OTHER_SHARE = 0.025  # of its relative surprise that the other cells take over
_LARGEST_SURPRISE = 3.0  # times what was expected; more is a hiccup, not a cost
_FULL_WEIGHT = 20.0


@dataclass(slots=True)
class _Cell:
    count: float
    time: float
    weight: float = 1.0


class CostTable:
    """Running means by count; `at` is a curve through them that never falls."""

    def __init__(self) -> None:
        self._cells: dict[int, _Cell] = {}
        self._curve: list[tuple[float, float]] | None = None
        self._slope = 0.0

    @property
    def is_empty(self) -> bool:
        """Whether nothing was measured yet."""
        return not self._cells

    def observe(self, count: int, time: float) -> None:
        """Take in one measurement for `count`, at least 1."""
        self._curve = None
        key = _cell_key(count)
        cell = self._cells.get(key)
        if cell is None:
            self._cells[key] = _Cell(float(count), time)
            return
        surprise = min(time / max(cell.time, 1e-9), _LARGEST_SURPRISE)
        share = max(_OWN_SHARE, 1.0 / (cell.weight + 1.0))
        cell.weight = min(cell.weight + 1.0, _FULL_WEIGHT)
        cell.count += share * (count - cell.count)
        if cell.weight >= _FULL_WEIGHT:
            for other in self._cells.values():
                if other is not cell:
                    other.time *= 1.0 + _OTHER_SHARE * (surprise - 1.0)
        cell.time *= 1.0 + share * (surprise - 1.0)

    def at(self, count: float) -> float:
        """Expected time for `count`, in the unit of the measurements; 0.0 without any."""
        if self._curve is None:
            self._curve = _rising(sorted(self._cells.values(), key=lambda cell: cell.count))
            self._slope = _slope(self._curve)
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


def _cell_key(count: int) -> int:
    if count <= _EXACT_COUNTS:
        return count
    return _EXACT_COUNTS + 1 + int(math.log(count / (_EXACT_COUNTS + 1)) / _CELL_WIDTH)


def _rising(cells: list[_Cell]) -> list[tuple[float, float]]:
    """Points (count, time) of the closest curve that never falls, by weighted squares."""
    blocks: list[tuple[float, float, int]] = []  # mean time, weight, number of cells
    for cell in cells:
        mean, weight, num_cells = cell.time, cell.weight, 1
        while blocks and blocks[-1][0] >= mean:
            before, before_weight, before_cells = blocks.pop()
            mean = (mean * weight + before * before_weight) / (weight + before_weight)
            weight += before_weight
            num_cells += before_cells
        blocks.append((mean, weight, num_cells))
    times = [mean for mean, _, num_cells in blocks for _ in range(num_cells)]
    return [(cell.count, time) for cell, time in zip(cells, times, strict=True)]


def _slope(curve: list[tuple[float, float]]) -> float:
    """Of the least-squares line through the points, never negative."""
    if len(curve) < 2:
        return 0.0
    mean_count = sum(count for count, _ in curve) / len(curve)
    mean_time = sum(time for _, time in curve) / len(curve)
    spread = sum((count - mean_count) ** 2 for count, _ in curve)
    covariance = sum((count - mean_count) * (time - mean_time) for count, time in curve)
    return max(0.0, covariance / spread)
