"""Measures several things by turns, because a machine's speed changes while one measures it.

Every repeat runs all lines once. The order is turned by one each time, so that no line is always
the one after a slow one. Medians are compared, and ratios are taken within a repeat.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

Value = TypeVar("Value")


def interleave(lines: Mapping[str, Callable[[], Value]], repeats: int) -> dict[str, list[Value]]:
    """Run the lines by turns and return their values in order of repeats."""
    values: dict[str, list[Value]] = {name: [] for name in lines}
    for turn in range(repeats):
        for name in _turned(list(lines), turn):
            values[name].append(lines[name]())
    return values


def median_ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """Return the median of the ratios turn by turn; of events, which have no turns, of medians."""
    if len(above) != len(below):
        above, below = [statistics.median(above)], [statistics.median(below)]
    pairs = zip(above, below, strict=True)
    return statistics.median(one / other if other else 0.0 for one, other in pairs)


def _turned(names: list[str], turn: int) -> list[str]:
    start = turn % len(names) if names else 0
    return names[start:] + names[:start]
