"""Every figure that a Markdown file may show, by the name that its block has.

A figure is a function of the folder of the page that shows it, because links are relative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from loadtest.report.readme import front, gpu, lookahead
from loadtest.report.readme.result import Result


def _of(name: str, render: Callable[[Result], str]) -> Callable[[Path], str]:
    """Return a function that shows the result called `name` by `render`."""
    return lambda seen_from: render(Result.load(name, seen_from))


FIGURES: Mapping[str, Callable[[Path], str]] = {
    "sooner": front.sooner,
    "beside-others": front.beside_others,
    "kinds-in-short": _of("kinds", front.kinds),
    "lookahead": lookahead.lookahead,
    "lookahead-by-pair": lookahead.lookahead_by_pair,
    "lookahead-drafts": lookahead.lookahead_drafts,
    "gpu-speed": _of("gpu-h100", gpu.speed),
    "gpu-passes": _of("gpu-h100", gpu.passes),
    "gpu-draws": _of("gpu-h100", gpu.draws),
    "gpu-attention": _of("gpu-h100", gpu.attention),
    "gpu-memory": _of("gpu-h100", gpu.memory),
    "gpu-tests": _of("gpu-h100", gpu.tests),
}
