"""Draws a soak from its result: memory of every process by minute, queues, KV blocks.

python -m loadtest.soak.plot loadtest/results/soak.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtest.service.gauges import RUNNING, WAITING

_INCHES = (11.0, 9.0)
_DPI = 110
_QUEUES = {RUNNING: "running", WAITING: "waiting"}
_BLOCKS = ".num_used_blocks"
_NOTHING: Mapping[str, Any] = {"minute": [], "p50": [], "max": []}

Content = Mapping[str, Any]


def draw(content: Content, path: Path) -> None:
    """Write a PNG: growth of each process in percent of the first quarter, MiB, and queues.

    `content` is a soak's result (`record.Report.content`), as it is kept.
    """
    figure = Figure(figsize=_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    change, whole, queues, blocks = figure.subplots(2, 2).flat
    ours = [process for process in content["processes"] if process["is_judged"]]
    _draw_change(change, ours, content["limit"])
    _draw_whole(whole, [process for process in ours if process["pid"]])
    _draw_queues(queues, content["gauges"])
    _draw_blocks(blocks, content["gauges"])
    for panel in (change, whole, queues, blocks):
        panel.axvspan(0, content["warm_up_s"] / 60, color="0.92", zorder=0)
        panel.set_xlim(0, max(content["length_s"], 1.0) / 60)
        panel.set_xlabel("minutes of load (grey: warm-up)")
        panel.grid(alpha=0.3)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})


def _draw_change(panel: Any, ours: Sequence[Content], limit: float) -> None:
    shown = 2 * limit or 1.0
    panel.axhline(100 * limit, color="red", linestyle="--", linewidth=1)
    for process in ours:
        if process["growth"] is None:
            continue
        base = process["growth"]["early_mib"]
        # Shared pages count once in the sum: it is of proportional memory.
        memory = process["private_mib" if process["pid"] else "proportional_mib"]
        style = {"linewidth": 1.1} if process["pid"] else {"color": "black", "linewidth": 2.0}
        changes = [100 * (value / base - 1) for value in memory["p50"]]
        panel.plot(_middles(memory), changes, label=_name(process), **style)
        shown = max(shown, 1.5 * abs(process["growth"]["share"]))
    panel.set_ylim(-100 * shown, 100 * shown)
    panel.set_ylabel("% of the first quarter after the warm-up")
    panel.set_title("private memory of each process; all: PSS", fontsize="medium")
    if panel.lines[1:]:
        panel.legend(fontsize="xx-small", ncols=2, loc="lower right")


def _draw_whole(panel: Any, ours: Sequence[Content]) -> None:
    for process in sorted(ours, key=lambda process: -process["private_mib"]["greatest"]):
        memory = process["private_mib"]
        panel.plot(_middles(memory), memory["p50"], label=_name(process))
    panel.set_ylim(bottom=0)
    panel.set_ylabel("MiB")
    panel.set_title("private memory of our processes", fontsize="medium")
    if ours:
        panel.legend(fontsize="xx-small", loc="center right")


def _draw_queues(panel: Any, gauges: Content) -> None:
    for gauge, name in _QUEUES.items():
        _draw_gauge(panel, gauges.get(gauge, _NOTHING), name)
    panel.set_ylim(bottom=0)
    panel.set_ylabel("requests (band: the greatest of each minute)")
    panel.set_title("router", fontsize="medium")
    panel.legend(fontsize="small")


def _draw_blocks(panel: Any, gauges: Content) -> None:
    for gauge in sorted(gauges):
        if gauge.endswith(_BLOCKS):
            _draw_gauge(panel, gauges[gauge], gauge.removesuffix(_BLOCKS))
    panel.set_ylim(bottom=0)
    panel.set_ylabel("blocks that sessions hold")
    panel.set_title("KV cache", fontsize="medium")
    if panel.lines:
        panel.legend(fontsize="small")


def _draw_gauge(panel: Any, gauge: Content, name: str) -> None:
    minutes = _middles(gauge)
    [line] = panel.plot(minutes, gauge["p50"], label=name, linewidth=1.1)
    panel.fill_between(minutes, gauge["p50"], gauge["max"], color=line.get_color(), alpha=0.2)


def _middles(series: Content) -> list[float]:
    return [minute + 0.5 for minute in series["minute"]]


def _name(process: Content) -> str:
    return f"{process['kind']} {process['pid']}" if process["pid"] else str(process["kind"])


if __name__ == "__main__":
    for file in map(Path, sys.argv[1:]):
        draw(json.loads(file.read_text(encoding="utf-8")), file.with_suffix(".png"))
