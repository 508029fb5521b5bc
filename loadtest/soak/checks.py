"""Checks the samples of a soak: memory is flat, queues are within their limits.

Memory is checked by private pages (USS, and their swapped part), because a leak is private memory.
PSS and RSS also move when another process maps or leaves shared pages. The sum of PSS checks all
processes together; it counts shared pages once, so growth of shared memory shows there. Ray's own
processes are reported and not checked. The check compares the last quarter's median with that of
the first quarter after the warm-up. Medians ignore the spikes of single samples, and the difference
is memory that is held, not an extrapolation. A lasting step counts in full at any place. The
least-squares slope is reported next to it.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtest.service.memory import MIB, Series

_LEAST_SAMPLES = 3  # in a quarter; fewer have no median worth the name


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """The growth of a series after the warm-up."""

    early_mib: float  # median of the first quarter
    late_mib: float  # median of the last
    share: float  # (late - early) / early
    slope_mib_per_hour: float


def growth(at_s: Sequence[float], values: Sequence[int], sampled: Sequence[float]) -> Growth:
    """Compare the first and the last quarter of the time from sampled[0] to sampled[-1].

    Raises:
        ValueError: a quarter has too few samples.
    """
    if not sampled:
        raise ValueError("no sample after the warm-up")
    from_s, to_s = sampled[0], sampled[-1]
    quarter_s = (to_s - from_s) / 4
    kept = [(t, v) for t, v in zip(at_s, values, strict=True) if from_s <= t <= to_s]
    early = [v for t, v in kept if t <= from_s + quarter_s]
    late = [v for t, v in kept if t >= to_s - quarter_s]
    least = min(len(early), len(late))
    if least < _LEAST_SAMPLES:
        raise ValueError(f"{least} samples in a quarter, at least {_LEAST_SAMPLES} are needed")
    slope = statistics.linear_regression(*zip(*kept, strict=True)).slope
    before, after = statistics.median(early), statistics.median(late)
    return Growth(
        early_mib=before / MIB,
        late_mib=after / MIB,
        share=(after - before) / max(before, 1),  # a sum over no process is 0
        slope_mib_per_hour=slope * 3600 / MIB,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryCheck:
    """One line of the report. `growth` None: it cannot be computed, `complaint` says why."""

    series: Series
    growth: Growth | None
    complaint: str


def check_memory(series: Sequence[Series], *, from_s: float, limit: float) -> list[MemoryCheck]:
    """Check every series from the end of the warm-up to the last sample.

    Args:
        series: of processes, and sums (`pid` 0), which every sample has.
        from_s: end of the warm-up.
        limit: share by which memory may have grown.
    """
    every = next(one for one in series if one.pid == 0)
    sampled = [at_s for at_s in every.at_s if at_s >= from_s]
    return [_check(one, sampled, limit) for one in series]


def _check(one: Series, sampled: Sequence[float], limit: float) -> MemoryCheck:
    found, complaint = None, ""
    if sampled and one.at_s[0] > sampled[0]:
        complaint = f"came {one.at_s[0]:.0f} s after the start"
    elif sampled and one.at_s[-1] < sampled[-1]:
        complaint = f"ended {one.at_s[-1]:.0f} s after the start"
    else:
        try:
            found = growth(one.at_s, one.checked, sampled)
        except ValueError as error:
            complaint = str(error)
        else:
            if found.share > limit:
                complaint = f"grew by {found.share:.1%}, the limit is {limit:.0%}"
    return MemoryCheck(series=one, growth=found, complaint=complaint)


# --- queues ---------------------------------------------------------------------------------------


def check_bounds(gauges: Mapping[str, Sequence[float]], limits: Mapping[str, float]) -> list[str]:
    """Return one line for each gauge that exceeded its limit or never appeared."""
    complaints = []
    for name, limit in limits.items():
        values = gauges.get(name, ())
        if not values:
            complaints.append(f"{name} was never to be had")
        elif max(values) > limit:
            complaints.append(f"{name} reached {max(values):g}, the limit is {limit:g}")
    return complaints


def saturation(running: Sequence[float], capacity: float) -> float:
    """Share of samples in which at least nine tenths of all places were taken."""
    if not running:
        return 0.0
    return sum(value >= 0.9 * capacity for value in running) / len(running)
