"""One picture of what is kept of a pair: satisfaction against passes, thresholds, sessions."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

FILE = "lookahead.png"
_PANEL_INCHES = (3.8, 3.1)
_MOST_COLUMNS = 3
_DPI = 90

Painter = Callable[[Any, Mapping[str, Any]], None]


def draw(folder: Path) -> None:
    """Write the picture of all results in a folder, if one of them has a panel."""
    panels = [
        (file, painter)
        for file in sorted(folder.glob("*.json"))
        if (painter := _PAINTERS.get(file.stem.partition("-")[0])) is not None
    ]
    if not panels:
        return
    columns = min(len(panels), _MOST_COLUMNS)
    rows = -(-len(panels) // columns)
    figure = Figure(
        figsize=(_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows), layout="constrained"
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, columns, squeeze=False).flatten()
    for panel in axes[len(panels) :]:
        panel.set_visible(False)
    for panel, (file, painter) in zip(axes, panels, strict=False):
        painter(panel, json.loads(file.read_text(encoding="utf-8")))
        panel.set_title(file.stem.replace("-", ", ", 1), fontsize="medium")
        panel.grid(alpha=0.3)
        if panel.get_legend_handles_labels()[0]:
            panel.legend(fontsize="x-small")
    figure.savefig(folder / FILE, dpi=_DPI, metadata={"Software": None})


def _ways(panel: Any, result: Mapping[str, Any]) -> None:
    """Satisfaction with its interval over passes a token: a colour a table, a mark a way."""
    tables = list(dict.fromkeys(line["table"] for line in result["lines"]))
    for line in result["lines"]:
        label = f"{line['way']}, {line['table']}".removesuffix(", ")
        colour = f"C{tables.index(line['table'])}"
        _point(panel, line, label, "D" if line["way"] == "cdsl" else "o", colour)
    _label(panel, "target passes a token", "hard satisfaction")


def _thresholds(panel: Any, result: Mapping[str, Any]) -> None:
    """Plot every pair of thresholds, by both rules; frontiers are lines."""
    for number, (rule, part) in enumerate(result["rules"].items()):
        colour = f"C{number}"
        best = sorted((line for line in part["lines"] if line["is_best"]), key=_passes)
        panel.plot([_passes(line) for line in best], [_hard(line) for line in best], color=colour)
        for place, a_t in enumerate(
            dict.fromkeys(line["terms"]["accept_threshold"] for line in part["lines"])
        ):
            lines = [one for one in part["lines"] if one["terms"]["accept_threshold"] == a_t]
            panel.plot(
                [_passes(line) for line in lines],
                [_hard(line) for line in lines],
                "osd^v<>"[place % 7],
                color=colour,
                label=f"{rule}, a_t = {a_t:g}",
            )
            for line in lines:
                panel.annotate(
                    f"{line['terms']['reward_threshold']:g}",
                    (_passes(line), _hard(line)),
                    fontsize="x-small",
                )
        _point(panel, part["cdlh"], f"cdlh beside {rule}", "*", colour)
    _point(panel, result["greedy"], "greedy")
    _label(panel, "target passes a token (numbers: r_t)", "hard satisfaction")


def _batch(panel: Any, result: Mapping[str, Any]) -> None:
    """Tokens per second over sessions."""
    lines: Sequence[Mapping[str, Any]] = result["lines"]
    panel.plot([line["sessions"] for line in lines], [line["tokens_per_s"] for line in lines], "o-")
    panel.set_ylim(bottom=0)
    _label(panel, "look-ahead sessions at once", "tokens/s of all")


_PAINTERS: Mapping[str, Painter] = {
    "compare": _ways,
    "thresholds": _thresholds,
    "batch": _batch,
}


def _point(
    panel: Any, line: Mapping[str, Any], label: str, mark: str = "o", colour: str | None = None
) -> None:
    hard = line["hard"]
    panel.errorbar(
        [_passes(line)],
        [hard["value"]],
        yerr=[[hard["value"] - hard["low"]], [hard["high"] - hard["value"]]],
        fmt=mark,
        color=colour,
        capsize=3,
        label=label,
    )


def _passes(line: Mapping[str, Any]) -> float:
    return float(line["passes_per_token"])


def _hard(line: Mapping[str, Any]) -> float:
    return float(line["hard"]["value"])


def _label(panel: Any, x_label: str, y_label: str) -> None:
    panel.set_xlabel(x_label, fontsize="small")
    panel.set_ylabel(y_label, fontsize="small")
