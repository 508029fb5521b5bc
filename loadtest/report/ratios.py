"""Ratios of rates that were measured by turns, with 95% intervals.

A machine's speed changes while one measures, so a ratio is taken within a turn and the median over
turns is the figure. The best of several lines is picked on one half of the turns and compared on
the other: picked where it is compared, chance alone would make it look better than it is, the more
so the more lines there are. Each half picks once for the other, so that every turn is compared.

Intervals draw whole turns again, within each half, and pick again each time (bootstrap).
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_INTERVAL = (2.5, 97.5)  # percentiles
_NUM_RESAMPLES = 2000

_Rates = NDArray[np.float64]


@dataclass(frozen=True)
class Estimate:
    """A figure and its 95% interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class BestRatio:
    """How a line does against the best of others; `picked`: by the even turns and by the odd."""

    ratio: Estimate
    picked: tuple[str, str]


def ratio_of(above: Sequence[float], below: Sequence[float], seed: int = 0) -> Estimate:
    """The median over turns of above / below.

    Args:
        above, below: rates of two lines, in order of turns.
        seed: of the bootstrap.

    Raises:
        ValueError: the lines have not as many turns, or none.
    """
    if len(above) != len(below) or not above:
        raise ValueError(f"both lines need the same turns, got {len(above)} and {len(below)}")
    ratios = np.asarray(above, dtype=np.float64) / np.asarray(below, dtype=np.float64)
    drawn = np.random.default_rng(seed).integers(len(ratios), size=(_NUM_RESAMPLES, len(ratios)))
    return _estimate(statistics.median(ratios.tolist()), np.median(ratios[drawn], axis=1))


def ratio_to_best(
    line: Sequence[float], others: Mapping[str, Sequence[float]], seed: int = 0
) -> BestRatio:
    """The median over turns of `line` over the best of `others`, picked on the other turns.

    Args:
        line: its rates, in order of turns.
        others: the same of every line that may be the best, by name.
        seed: of the bootstrap.

    Raises:
        ValueError: there are no others, fewer than two turns, or not the same turns everywhere.
    """
    num_turns = len(line)
    if not others or num_turns < 2 or any(len(rates) != num_turns for rates in others.values()):
        lengths = {name: len(rates) for name, rates in others.items()}
        raise ValueError(f"at least two turns of every line are needed, got {num_turns}, {lengths}")
    names = list(others)
    rates = np.array([line, *others.values()], dtype=np.float64)  # [1 + others, turns]
    halves = [rates[:, None, start::2] for start in (0, 1)]  # [1 + others, 1, turns]
    value, picked = _cross_compared(*halves)
    choose = np.random.default_rng(seed)
    resampled, _ = _cross_compared(*(_drawn_again(half, choose) for half in halves))
    by_even, by_odd = (names[int(which[0])] for which in picked)
    return BestRatio(_estimate(float(value[0]), resampled), (by_even, by_odd))


def _cross_compared(
    even: _Rates,  # [1 + others, samples, turns]
    odd: _Rates,
) -> tuple[_Rates, tuple[NDArray[np.intp], NDArray[np.intp]]]:
    """The line (row 0) over the best of the others, each half picking for the other half.

    Returns:
        The ratio of each sample, and which of the others it picked by even turns and by odd.
    """
    by_even, by_odd = (np.median(half[1:], axis=2).argmax(axis=0) for half in (even, odd))
    samples = np.arange(even.shape[1])
    compared = [
        odd[0] / odd[1 + by_even, samples],  # [samples, turns]
        even[0] / even[1 + by_odd, samples],
    ]
    return np.median(np.concatenate(compared, axis=1), axis=1), (by_even, by_odd)


def _drawn_again(half: _Rates, choose: np.random.Generator) -> _Rates:
    num_turns = half.shape[2]
    drawn = choose.integers(num_turns, size=(_NUM_RESAMPLES, num_turns))
    return np.asarray(half[:, 0, drawn])


def _estimate(value: float, resampled: _Rates) -> Estimate:
    low, high = np.percentile(resampled, _INTERVAL)
    return Estimate(float(value), float(low), float(high))
