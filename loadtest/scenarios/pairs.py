"""The pairs of the scenarios by name: where they are, and the prompts they are asked.

A pair that is not on this machine is no error: its scenarios are left out, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from loadtest.report.machine import ROOT
from loadtest.report.prompts import demo_prompts
from loadtest.scenarios.asks import PromptSource
from loadtest.scenarios.catalog import DEMO


class Missing(Exception):
    """A pair is not on this machine; the text says how it would come here."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Checkpoints, and what they are asked. `draft` None: prompt lookup drafts."""

    target: Path
    draft: Path | None
    prompts: PromptSource


def find_pair(name: str, cache: Path) -> Pair:
    """Return the pair of that name.

    Args:
        name: as the scenarios call it.
        cache: folder of grown pairs.

    Raises:
        Missing: it is not here.
    """
    path = ROOT / "models" / "demo" if name == DEMO else cache / name
    if not (path / "draft" / "config.json").is_file():
        raise Missing(f"no pair {name} in the cache: `python -m loadtest.scenarios --grow`")
    return Pair(target=path / "target", draft=path / "draft", prompts=_demo_prompts)


def _demo_prompts(kind: str, count: int) -> list[list[int]]:
    return demo_prompts(count, kind=kind)
