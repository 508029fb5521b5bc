"""The pairs of models that experiments name, and where their checkpoints are.

A pair may be missing on a machine. The message says how it would come there.
"""

from __future__ import annotations

import os
from pathlib import Path

from loadtest.frame.stages import Models
from loadtest.report.machine import ROOT
from models.fetch.known import SMOLLM2 as FETCHED

DEMO, SMOLLM2 = "demo", "smollm2"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "outrider" / "pairs"


def find_models(name: str) -> Models:
    """Return the models of a pair.

    Args:
        name: `demo`, `smollm2` (no draft model), a pair that was grown into the cache, or a folder
            that holds target/ and draft/, maybe as LABEL=FOLDER.

    Raises:
        ValueError: it is not here.
    """
    if name == SMOLLM2:
        folder = FETCHED.folder
        if not (folder / "config.json").is_file():
            raise ValueError(
                f"{name} is not here; `python -m models.fetch {FETCHED.command}` brings it"
            )
        return Models(label=name, target=folder, drafts={})
    label, _, directory = name.rpartition("=")
    folder = ROOT / "models" / DEMO if name == DEMO else Path(directory)
    if not label and (CACHE / name / "target").is_dir():
        folder = CACHE / name
    for part in ("target", "draft"):
        if not (folder / part / "config.json").is_file():
            raise ValueError(
                f"pair {name!r}: {part}/config.json is missing; `python -m loadtest.grow --preset "
                f"349m-18m --output {CACHE}/349m-18m` grows one"
            )
    return Models(
        label=label or folder.resolve().name,
        target=folder / "target",
        drafts={"draft": folder / "draft"},
    )
