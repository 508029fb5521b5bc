"""Every figure that a Markdown file may show, by the name that its block has.

A figure is a function of the folder of the page that shows it, because links are relative.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from loadtest.report.readme import front, lookahead

FIGURES: Mapping[str, Callable[[Path], str]] = {
    "sooner": front.sooner,
    "beside-others": front.beside_others,
    "kinds-in-short": front.kinds,
    "lookahead": lookahead.lookahead,
    "lookahead-by-pair": lookahead.lookahead_by_pair,
    "lookahead-drafts": lookahead.lookahead_drafts,
}
