"""What a soak has found: for people, and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

import numpy as np

from loadtest.service.memory import MIB, Series
from loadtest.soak.judge import Judged
from loadtest.soak.load import Tally


@dataclass
class Report:
    """What a soak has found. Written whatever ends it."""

    tally: Tally = field(default_factory=Tally)
    length_s: float = 0.0
    load_cpu_share: float = 0.0  # of one core
    judged: list[Judged] = field(default_factory=list)
    gauge_at_s: list[float] = field(default_factory=list)
    gauges: dict[str, list[float]] = field(default_factory=dict)
    saturation: float = 0.0
    violations: list[str] = field(default_factory=list)

    def content(self) -> dict[str, object]:
        """Everything as one record."""
        return {
            "all_held": not self.violations,
            "violations": self.violations,
            "length_s": round(self.length_s, 1),
            "requests": _requests(self),
            "saturation": round(self.saturation, 3),
            "load_cpu_share": round(self.load_cpu_share, 3),
            "gauges": {
                "at_s": _rounded(self.gauge_at_s, 1),
                **{name: _rounded(values, 3) for name, values in sorted(self.gauges.items())},
            },
            "processes": [_process(judged) for judged in self.judged],
        }


def table(judged: Sequence[Judged]) -> str:
    """Memory of every process for people, MiB of private pages (all together: PSS)."""
    lines = [
        f"{'process':20} {'pid':>8} {'first quarter':>14} {'last quarter':>13} {'growth':>8} "
        f"{'MiB/hour':>9}  verdict"
    ]
    for one in judged:
        series = one.series
        words = f"{series.kind:20} {series.pid or '':>8} "
        verdict = (one.complaint or "flat") if series.is_ours else f"not judged {one.complaint}"
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


def _process(judged: Judged) -> dict[str, object]:
    series = judged.series
    return {
        "kind": series.kind,
        "pid": series.pid,
        "is_judged": series.is_ours,
        "complaint": judged.complaint,
        "growth": None if judged.growth is None else _short(asdict(judged.growth)),
        "at_s": _rounded(series.at_s, 1),
        **{f"{name}_mib": _mib(values) for name, values in _columns(series).items()},
    }


def _columns(series: Series) -> dict[str, list[int]]:
    # Ray's own processes are only told: their private memory is enough.
    columns = {"private": series.private}
    if series.is_ours:
        columns |= {"proportional": series.proportional, "resident": series.resident}
    return columns


def _mib(values: Sequence[int]) -> list[float]:
    return [round(value / MIB, 1) for value in values]


def _rounded(values: Sequence[float], digits: int) -> list[float]:
    return [round(value, digits) for value in values]


def _short(figures: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 4) for name, value in figures.items()}
