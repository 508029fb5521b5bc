"""Draws adaptive k against the best fixed k and plain decoding, a row for each scenario."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

_WIDTH_INCHES, _ROW_INCHES, _HEAD_INCHES = 9.0, 0.2, 1.4
_DPI = 110
# Entry of a scenario, label, index of its claim, color, place within the row.
_RATIOS = (
    ("to_best", "adaptive / best fixed k", 0, "#084594", -0.16),
    ("to_plain", "adaptive / plain", 1, "#fd8d3c", 0.16),
)


def draw(scenarios: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a PNG: ratios with 95% intervals; a hollow mark has missed its goal."""
    height = _HEAD_INCHES + _ROW_INCHES * len(scenarios)
    figure = Figure(figsize=(_WIDTH_INCHES, height), layout="constrained")
    FigureCanvasAgg(figure)
    panel = figure.subplots()
    for key, label, claim, color, place in _RATIOS:
        for row, one in enumerate(scenarios):
            ratio = one[key]["ratio"] if key == "to_best" else one[key]
            is_met = one["claims"][claim]["is_met"]
            panel.hlines(row + place, ratio["low"], ratio["high"], color=color, linewidth=1.2)
            panel.plot(
                ratio["value"],
                row + place,
                marker="o",
                markersize=4,
                color=color,
                markerfacecolor=color if is_met else "white",
            )
        panel.plot([], [], marker="o", linestyle="", color=color, label=label)
    panel.plot(
        [], [], marker="o", linestyle="", color="gray", markerfacecolor="white", label="goal missed"
    )
    panel.axvline(1.0, color="black", linewidth=0.8)
    panel.set_yticks(range(len(scenarios)), [one["name"] for one in scenarios], fontsize="x-small")
    panel.set_ylim(len(scenarios) - 0.5, -0.5)
    panel.set_xscale("log")
    ticks = [0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 4.0]
    panel.set_xticks(ticks, [f"{tick:g}" for tick in ticks], fontsize="small")
    panel.minorticks_off()
    panel.set_xlabel("tokens/s of adaptive k over the other's, by turns, with 95% intervals")
    panel.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside upper right", ncols=3, fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})
