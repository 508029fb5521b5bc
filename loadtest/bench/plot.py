"""Draws what a benchmark measured: tokens per second by way and batch, pass times by rows."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtest.bench.claims import best

_ROW_INCHES = (11.0, 3.8)
_DPI = 110
# Drawn lines by pattern of the way; of several that match, the fastest.
_WAYS = {
    "k = 0": r"k=0",
    "best fixed k": r"k=[1-9]\d*",
    "adaptive k": r"adaptive",
    "transformers": r"transformers",
    "transformers assisted": r"assisted .*",
}
_COLORS = ("#9ecae1", "#4292c6", "#084594", "#fdae6b", "#d94801")
_GROUP_WIDTH = 0.84
_NOT_DRAWN = ("64x1", "128 new", "512 new")  # they would dwarf the others; the table has them


def draw(pairs: Mapping[str, Mapping[str, Any]], path: Path) -> None:
    """Write a PNG with a row per pair: rates on the left, passes of the target on the right."""
    figure = Figure(figsize=(_ROW_INCHES[0], _ROW_INCHES[1] * len(pairs)), layout="constrained")
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(pairs), 2, squeeze=False, width_ratios=(3, 2))
    for (label, content), (rates, passes) in zip(pairs.items(), panels, strict=True):
        _draw_rates(rates, label, content["lines"])
        _draw_passes(passes, label, content.get("target", {}).get("passes", []))
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})


def _draw_rates(panel: Any, label: str, lines: list[Mapping[str, Any]]) -> None:
    groups = sorted({("engine", line["batch"]) for line in lines if line["where"] == "engine"})
    groups += [("http", 1)] if any(line["where"] == "http" for line in lines) else []
    width = _GROUP_WIDTH / len(_WAYS)
    for index, (name, pattern) in enumerate(_WAYS.items()):
        for place, (where, batch) in enumerate(groups):
            line = best(lines, where, pattern, batch)
            if line is None:
                continue
            x = place + (index - (len(_WAYS) - 1) / 2) * width
            bars = panel.bar(x, line["tokens_per_s"], width * 0.94, color=_COLORS[index])
            panel.bar_label(bars, fmt="%.0f", fontsize=7)
            if name == "best fixed k" or name.endswith("assisted"):
                detail = line["way"].removeprefix("assisted ").replace("heuristic", "heur.")
                panel.text(
                    x, 0, f" {detail}", rotation=90, ha="center", va="bottom", color="white",
                    fontsize=7,
                )  # fmt: skip
        panel.bar(0, 0, color=_COLORS[index], label=name)
    panel.set_xticks(
        range(len(groups)),
        [f"batch {batch}" + (", HTTP" if where == "http" else "") for where, batch in groups],
    )
    panel.set_title(f"{label}: tokens/s", fontsize="medium")
    panel.set_ylabel("tokens/s")
    panel.margins(y=0.12)
    panel.legend(fontsize="x-small")


def _draw_passes(panel: Any, label: str, passes: list[Mapping[str, Any]]) -> None:
    decode = [line for line in passes if line["name"] not in _NOT_DRAWN]
    places = range(len(decode))
    panel.bar(places, [line["pass_ms"] for line in decode], color="#c6dbef", label="whole pass")
    panel.bar(
        places,
        [line["products_ms"] for line in decode],
        color="#2171b5",
        width=0.5,
        label="its matrix products alone",
    )
    for place, line in zip(places, decode, strict=True):
        panel.annotate(
            f"{line['ratio']:.2f}x", (place, line["pass_ms"]), ha="center", va="bottom", fontsize=7
        )
    panel.set_xticks(places, [line["name"] for line in decode], fontsize="small")
    panel.set_xlabel("sessions x rows")
    panel.set_ylabel("ms")
    panel.set_title(f"{label}: a pass of the target", fontsize="medium")
    panel.margins(y=0.12)
    panel.legend(fontsize="x-small", loc="upper left")
