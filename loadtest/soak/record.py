"""The record of a soak: for people, and as JSON."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np

from loadtest.service.memory import MIB, Series
from loadtest.soak.checks import MemoryCheck
from loadtest.soak.load import Tally
from loadtest.soak.plot import draw
from loadtest.trial import frame


@dataclass(kw_only=True)
class Report(frame.Report):
    """Holds what a soak has found so far; its file keeps medians and extremes by minute."""

    tally: Tally = field(default_factory=Tally)
    length_s: float = 0.0
    warm_up_s: float = 0.0
    limit: float = 0.0  # growth allowed, as a share
    load_cpu_share: float = 0.0  # share of one core
    memory: list[MemoryCheck] = field(default_factory=list)
    gauge_at_s: list[float] = field(default_factory=list)
    gauges: dict[str, list[float]] = field(default_factory=dict)
    saturation: float = 0.0

    def content(self) -> dict[str, object]:
        """See `frame.Report`; `plot.draw` needs no more than this."""
        return {
            "all_held": self.is_clean,
            "violations": self.problems,
            "length_s": round(self.length_s, 1),
            "warm_up_s": self.warm_up_s,
            "limit": self.limit,
            "requests": _requests(self),
            "saturation": round(self.saturation, 3),
            "load_cpu_share": round(self.load_cpu_share, 3),
            "gauges": {
                name: by_minute(self.gauge_at_s, values, 3)
                for name, values in sorted(self.gauges.items())
            },
            "processes": [_process(check) for check in self.memory],
        }

    def lines(self) -> list[str]:
        """Memory of every process."""
        return [table(self.memory)]

    def draw(self, path: Path) -> None:
        """See `plot.draw`."""
        draw(self.content(), path)


def by_minute(at_s: Sequence[float], values: Sequence[float], digits: int) -> dict[str, object]:
    """Return median and greatest of each minute that has samples, and extremes and last of all."""
    minutes: dict[int, list[float]] = {}
    for time_s, value in zip(at_s, values, strict=False):
        minutes.setdefault(int(time_s // 60), []).append(value)
    whole = list(values)
    return {
        "minute": list(minutes),
        "p50": [round(statistics.median(found), digits) for found in minutes.values()],
        "max": [round(max(found), digits) for found in minutes.values()],
        "least": round(min(whole), digits) if whole else None,
        "greatest": round(max(whole), digits) if whole else None,
        "last": round(whole[-1], digits) if whole else None,
    }


def table(checks: Sequence[MemoryCheck]) -> str:
    """Memory of every process for people, MiB of private pages (all together: PSS)."""
    lines = [
        f"{'process':20} {'pid':>8} {'first quarter':>14} {'last quarter':>13} {'growth':>8} "
        f"{'MiB/hour':>9}  verdict"
    ]
    for one in checks:
        series = one.series
        words = f"{series.kind:20} {series.pid or '':>8} "
        verdict = (one.complaint or "flat") if series.is_ours else f"not checked {one.complaint}"
        if one.growth is None:
            lines.append(f"{words}{'':48} {verdict}")
            continue
        found = one.growth
        lines.append(
            f"{words}{found.early_mib:14.1f} {found.late_mib:13.1f} {found.share:8.1%} "
            f"{found.slope_mib_per_hour:9.1f}  {verdict}"
        )
    return "\n".join(lines)


def _requests(report: Report) -> dict[str, object]:
    tally = report.tally
    first_text_s = tally.first_text_s
    quantiles = np.quantile(first_text_s, (0.5, 0.99)).round(3).tolist() if first_text_s else None
    return {
        "by_kind": {
            name: {
                "ended": ended,
                "turned_away": tally.turned_away[name],
                "failed": tally.failed[name],
            }
            for name, ended in sorted(tally.ended.items())
        },
        "complaints": tally.complaints,
        "tokens": tally.num_tokens,
        "tokens_per_s": round(tally.num_tokens / max(report.length_s, 1e-9), 1),
        "first_text_s_p50_p99": quantiles,
    }


def _process(check: MemoryCheck) -> dict[str, object]:
    series = check.series
    return {
        "kind": series.kind,
        "pid": series.pid,
        "is_judged": series.is_ours,
        "complaint": check.complaint,
        "growth": None if check.growth is None else _short(asdict(check.growth)),
        "from_s": round(series.at_s[0], 1) if series.at_s else None,
        "to_s": round(series.at_s[-1], 1) if series.at_s else None,
        **{
            f"{name}_mib": by_minute(series.at_s, [value / MIB for value in values], 1)
            for name, values in _columns(series).items()
        },
    }


def _columns(series: Series) -> dict[str, list[int]]:
    # Private memory is enough for Ray's own processes: they are reported and not checked.
    columns = {"private": series.private}
    if series.is_ours:
        columns |= {"proportional": series.proportional, "resident": series.resident}
    return columns


def _short(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in figures.items()}
