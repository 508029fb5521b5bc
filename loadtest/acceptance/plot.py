"""Draws tokens per round over k: measured with intervals, and the two models next to it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from loadtest.acceptance.theory import Analysis, constant_tokens

_PANEL_INCHES = (3.6, 3.0)
_DPI = 110


@dataclass(frozen=True)
class Study:
    """One workload under one rule."""

    workload: str
    rule: str  # "coupled T=1", "greedy", ...
    analysis: Analysis


def draw(studies: Sequence[Study], path: Path) -> None:
    """Write a PNG with a panel per study: rules by row, workloads by column."""
    workloads = list(dict.fromkeys(study.workload for study in studies))
    rules = list(dict.fromkeys(study.rule for study in studies))
    figure = Figure(
        figsize=(_PANEL_INCHES[0] * len(workloads), _PANEL_INCHES[1] * len(rules)),
        layout="constrained",
    )
    FigureCanvasAgg(figure)
    panels = figure.subplots(len(rules), len(workloads), squeeze=False, sharex=True, sharey=True)
    for study in studies:
        panel = panels[rules.index(study.rule)][workloads.index(study.workload)]
        _draw_panel(panel, study)
    for panel in panels[-1]:
        panel.set_xlabel("draft tokens per round, k")
    for row in panels:
        row[0].set_ylabel("tokens per round")
    panels[0][0].legend(fontsize="small")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=_DPI, metadata={"Software": None})


def _draw_panel(panel, study: Study) -> None:  # type: ignore[no-untyped-def]  # matplotlib's Axes
    analysis = study.analysis
    ks = [line.k for line in analysis.lines]
    measured = [line.measured.value for line in analysis.lines]
    below = [line.measured.value - line.measured.low for line in analysis.lines]
    above = [line.measured.high - line.measured.value for line in analysis.lines]
    smooth = np.linspace(min(ks), max(ks), 50) if len(ks) > 1 else np.array(ks, dtype=float)
    a = analysis.acceptance.value
    panel.set_title(f"{study.workload}, {study.rule}: a = {a:.2f}", fontsize="medium")
    panel.plot(smooth, [_between(a, k) for k in smooth], label="(1 - a^(k+1)) / (1 - a)")
    panel.plot(ks, [line.by_position for line in analysis.lines], "--", label="1 + S_1 + ... + S_k")
    panel.errorbar(
        ks, measured, yerr=[below, above], fmt="o", color="black", capsize=3, label="measured, 95%"
    )
    panel.set_xticks(ks)
    panel.grid(alpha=0.3)


def _between(acceptance: float, k: float) -> float:
    """Return the formula at a k that is no whole number: linear between its neighbours at a = 1."""
    if acceptance > 1 - 1e-9:
        return constant_tokens(acceptance, int(k)) + k % 1
    return float((1 - acceptance ** (k + 1)) / (1 - acceptance))
