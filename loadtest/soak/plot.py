"""Draws a soak: memory of every process over time, queues, KV blocks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtest.service.gauges import RUNNING, WAITING
from loadtest.service.memory import MIB
from loadtest.soak.record import Report

_INCHES = (11.0, 9.0)
_DPI = 110
_QUEUES = {RUNNING: "running", WAITING: "waiting"}
_BLOCKS = ".num_used_blocks"


def draw(report: Report, path: Path, *, warm_up_s: float, limit: float) -> None:
    """Write a PNG: growth of each process in percent of the first quarter, MiB, and queues."""
    figure = Figure(figsize=_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    change, whole, queues, blocks = figure.subplots(2, 2).flat
    _draw_change(change, report, limit)
    _draw_whole(whole, report)
    _draw_queues(queues, report)
    _draw_blocks(blocks, report)
    for panel in (change, whole, queues, blocks):
        panel.axvspan(0, warm_up_s / 60, color="0.92", zorder=0)
        panel.set_xlim(0, max(report.length_s, 1.0) / 60)
        panel.set_xlabel("minutes of load (grey: warm-up)")
        panel.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})


def _draw_change(panel: Any, report: Report, limit: float) -> None:
    shown = 2 * limit
    panel.axhline(100 * limit, color="red", linestyle="--", linewidth=1)
    for one in report.judged:
        if one.growth is None or not one.series.is_ours:
            continue
        base = one.growth.early_mib * MIB
        style = {"color": "black", "linewidth": 2.0} if one.series.pid == 0 else {"linewidth": 1.1}
        minutes = [at_s / 60 for at_s in one.series.at_s]
        panel.plot(
            minutes, [100 * (v / base - 1) for v in one.series.judged], label=_name(one), **style
        )
        shown = max(shown, 1.5 * abs(one.growth.share))
    panel.set_ylim(-100 * shown, 100 * shown)
    panel.set_ylabel("% of the first quarter after the warm-up")
    panel.set_title("private memory of each process; all: PSS", fontsize="medium")
    if panel.lines[1:]:
        panel.legend(fontsize="xx-small", ncols=2, loc="lower right")


def _draw_whole(panel: Any, report: Report) -> None:
    ours = [one for one in report.judged if one.series.is_ours and one.series.pid]
    for one in sorted(ours, key=lambda one: -max(one.series.private)):
        minutes = [at_s / 60 for at_s in one.series.at_s]
        panel.plot(minutes, [value / MIB for value in one.series.private], label=_name(one))
    panel.set_ylim(bottom=0)
    panel.set_ylabel("MiB")
    panel.set_title("private memory of our processes", fontsize="medium")
    if ours:
        panel.legend(fontsize="xx-small", loc="center right")


def _draw_queues(panel: Any, report: Report) -> None:
    for gauge, name in _QUEUES.items():
        _draw_gauge(panel, report, gauge, name)
    panel.set_ylim(bottom=0)
    panel.set_ylabel("requests")
    panel.set_title("router", fontsize="medium")
    panel.legend(fontsize="small")


def _draw_blocks(panel: Any, report: Report) -> None:
    for gauge in sorted(report.gauges):
        if gauge.endswith(_BLOCKS):
            _draw_gauge(panel, report, gauge, gauge.removesuffix(_BLOCKS))
    panel.set_ylim(bottom=0)
    panel.set_ylabel("blocks that sessions hold")
    panel.set_title("KV cache", fontsize="medium")
    panel.legend(fontsize="small")


def _draw_gauge(panel: Any, report: Report, gauge: str, name: str) -> None:
    values = report.gauges.get(gauge, [])
    minutes = [at_s / 60 for at_s in report.gauge_at_s[: len(values)]]
    panel.plot(minutes, values, label=name, linewidth=1.1)


def _name(one: Any) -> str:
    return f"{one.series.kind} {one.series.pid}" if one.series.pid else str(one.series.kind)
