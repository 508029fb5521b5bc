"""Ratios of rates that were measured by turns, shares, and differences, with 95% intervals.

A machine's speed changes during a measurement. So a ratio is taken within a turn, and the median
over turns is the figure. The best of several lines is picked on one half of the turns and compared
on the other. Picked where it is compared, chance alone would make it look better than it is. The
effect grows with the number of lines. Each half picks once for the other, so that every turn is
compared.

Intervals draw whole turns again (bootstrap). A picked line stays picked, so that a half of one or
two turns has an interval too.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_INTERVAL = (2.5, 97.5)  # percentiles
_NUM_RESAMPLES = 2000
_Z = 1.959964  # bound of the normal distribution: 95% lie within

Totals = Sequence[tuple[float, float]]
_Rates = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95% interval."""

    value: float
    low: float
    high: float


def ratio_of(above: Sequence[float], below: Sequence[float], seed: int = 0) -> Estimate:
    """Return the median over turns of above / below.

    Args:
        above, below: rates of two lines, in order of turns.
        seed: of the bootstrap.

    Raises:
        ValueError: the lines have not as many turns, or none.
    """
    _check_turns(above, below)
    return _of_turns(np.asarray(above, np.float64) / np.asarray(below, np.float64), seed)


def difference_of(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Return the median over turns of above less below. Arguments and errors: see `ratio_of`."""
    _check_turns(above, below)
    return _of_turns(np.asarray(above, np.float64) - np.asarray(below, np.float64))


def rates_of_best(lines: Mapping[str, Sequence[float]]) -> list[float] | None:
    """Return the rates of the best line, in order of turns, each turn by the pick of the others.

    A single line is the best. None: several lines have fewer than two turns, so nothing is picked.
    """
    if len(lines) == 1:
        return list(*lines.values())
    num_turns = min(map(len, lines.values()))
    if num_turns < 2:
        return None
    by_even, by_odd = (_best(lines, start) for start in (0, 1))
    return [lines[by_odd if turn % 2 == 0 else by_even][turn] for turn in range(num_turns)]


def wilson(num_found: int, num_asked: int) -> Estimate:
    """Return a share with Wilson's interval.

    The interval is all of 0 to 1 if no question was asked.

    Source: Wilson, J. Am. Stat. Assoc. 22 (1927) 209.
    """
    if not num_asked:
        return Estimate(0.0, 0.0, 1.0)
    num, share = num_asked, num_found / num_asked
    middle = (share + _Z**2 / (2 * num)) / (1 + _Z**2 / num)
    half = _Z * math.sqrt(share * (1 - share) / num + _Z**2 / (4 * num**2)) / (1 + _Z**2 / num)
    return Estimate(share, max(0.0, middle - half), min(1.0, middle + half))


def mean_difference(above: Sequence[float], below: Sequence[float]) -> Estimate:
    """Return the mean of `above` less that of `below`, for the same questions in the same order.

    Questions are drawn again as pairs (bootstrap).

    Raises:
        ValueError: there are not as many of both, or none.
    """
    if len(above) != len(below) or not above:
        raise ValueError(f"both need the same questions, got {len(above)} and {len(below)}")
    less = np.asarray(above, dtype=np.float64) - np.asarray(below, dtype=np.float64)
    return _estimate(float(less.mean()), less[_drawn(len(less))].mean(axis=1))


def ratio_of_totals(above: Totals, below: Totals) -> Estimate:
    """Return the ratio of two averages, each a sum of counts over a sum of units.

    Questions are drawn again as pairs (bootstrap).

    Args:
        above, below: of each question its count and what that is divided by, in the same order.

    Raises:
        ValueError: there are not as many of both, or none.
    """
    if len(above) != len(below) or not above:
        raise ValueError(f"both need the same questions, got {len(above)} and {len(below)}")
    parts = np.asarray([above, below], dtype=np.float64)  # [2, questions, count and divisor]
    averages = parts.sum(axis=1)
    averages = averages[:, 0] / averages[:, 1]
    totals = parts[:, _drawn(parts.shape[1])].sum(axis=2)  # [2, resamples, count and divisor]
    again = totals[..., 0] / totals[..., 1]
    return _estimate(averages[0] / averages[1], again[0] / again[1])


def _check_turns(above: Sequence[float], below: Sequence[float]) -> None:
    if len(above) != len(below) or not above:
        raise ValueError(f"both lines need the same turns, got {len(above)} and {len(below)}")


def _of_turns(values: _Rates, seed: int = 0) -> Estimate:
    resampled = np.median(values[_drawn(len(values), seed)], axis=1)
    return _estimate(statistics.median(values.tolist()), resampled)


def _drawn(num: int, seed: int = 0) -> NDArray[np.int64]:
    """Return the indices of `num` turns or questions, drawn again and again."""
    return np.random.default_rng(seed).integers(num, size=(_NUM_RESAMPLES, num))


def _best(lines: Mapping[str, Sequence[float]], start: int) -> str:
    """Return the line with the highest median rate over every second turn."""
    return max(lines, key=lambda name: statistics.median(lines[name][start::2]))


def _estimate(value: float, resampled: _Rates) -> Estimate:
    low, high = np.percentile(resampled, _INTERVAL)
    return Estimate(float(value), float(low), float(high))
