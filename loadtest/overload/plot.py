"""Draws an overload run: goodput and answers over the rate of arrivals, waits, times to a 429."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtest.client.goodput import Stretch

_INCHES = (11.0, 4.2)
_DPI = 110


def draw(search: Sequence[Stretch], overload: Sequence[Stretch], path: Path) -> None:
    """Write a PNG: goodput on the left, times on the right."""
    figure = Figure(figsize=_INCHES, layout="constrained")
    FigureCanvasAgg(figure)
    goodput, times = figure.subplots(1, 2)
    _draw_goodput(goodput, search, overload)
    _draw_times(times, sorted([*search, *overload], key=lambda s: s.rate_per_s))
    for panel in (goodput, times):
        panel.set_xlabel("arrivals per second")
        panel.set_xlim(left=0)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        panel.legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})


def _draw_goodput(panel: Any, search: Sequence[Stretch], overload: Sequence[Stretch]) -> None:
    stretches = [*search, *overload]
    peak = max((stretch.goodput_per_s for stretch in stretches), default=0.0)
    rates = sorted({0.0, *(stretch.rate_per_s for stretch in stretches)})
    shown = [rate for rate in rates if rate <= 1.3 * peak] or [0.0]
    panel.plot(shown, shown, color="0.7", linestyle=":", label="all that arrive")
    panel.axhline(0.9 * peak, color="red", linestyle="--", linewidth=1, label="90% of the peak")
    for marker, label, group in (("o", "search", search), ("s", "multiples", overload)):
        panel.plot(
            [stretch.rate_per_s for stretch in group],
            [stretch.goodput_per_s for stretch in group],
            marker=marker,
            linestyle="-" if group is search else "--",
            label=f"goodput, {label}",
        )
    panel.set_ylabel("good answers per second")
    panel.set_title("goodput", fontsize="medium")


def _draw_times(panel: Any, stretches: Sequence[Stretch]) -> None:
    for index, quantile in enumerate(("p50", "p99")):
        style = "-" if index else ":"
        first = [(s.rate_per_s, s.first_text_s[index]) for s in stretches if s.first_text_s]
        refused = [(s.rate_per_s, s.refusal_s[index]) for s in stretches if s.refusal_s]
        for points, color, name in ((first, "C0", "first text"), (refused, "C3", "429")):
            panel.plot(
                [rate for rate, _ in points],
                [time_s for _, time_s in points],
                color=color,
                linestyle=style,
                marker=".",
                label=f"{name}, {quantile}",
            )
    panel.set_ylabel("seconds")
    panel.set_title("time to the first text, and to a 429", fontsize="medium")
