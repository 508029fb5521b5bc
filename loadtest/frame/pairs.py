"""The pairs of models that experiments name, and where their checkpoints are.

A pair may be missing on a machine. The message says how it would come there.
"""

from __future__ import annotations

import os
import re
from dataclasses import replace
from pathlib import Path

from loadtest.frame.stages import Models
from loadtest.report.machine import ROOT
from models.fetch.known import SMOLLM2 as FETCHED

DEMO, SMOLLM2 = "demo", "smollm2"
_GROWN = re.compile(r"a\d+-c\d+")
_TURNING = re.compile(r"a(\d+)to(\d+)-(c\d+)")
LATER = "later"  # pool of the draft that takes the first one's place
CACHE = Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "outrider" / "pairs"


def find_models(name: str) -> Models:
    """Return the models of a pair.

    Args:
        name: `demo`, `smollm2` (no draft model), a pair that was grown into the cache, or a folder
            that holds target/ and draft/, maybe as LABEL=FOLDER. `a95to30-c5` is `a95-c5`, whose
            draft makes way for that of `a30-c5` after half of a run's requests.

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
    if turning := _TURNING.fullmatch(name):
        first, later, cost = turning.groups()
        models, then = (find_models(f"a{part}-{cost}") for part in (first, later))
        drafts = {**models.drafts, LATER: then.drafts["draft"]}
        return replace(models, label=name, drafts=drafts, later=LATER)
    label, _, directory = name.rpartition("=")
    folder = ROOT / "models" / DEMO if name == DEMO else Path(directory)
    if not label and (CACHE / name / "target").is_dir():
        folder = CACHE / name
    for part in ("target", "draft"):
        if not (folder / part / "config.json").is_file():
            preset = name if _GROWN.fullmatch(name) else "349m-18m"
            raise ValueError(
                f"pair {name!r}: {part}/config.json is missing; `python -m loadtest.grow --preset "
                f"{preset}` grows {'it' if preset == name else 'one'}"
            )
    return Models(
        label=label or folder.resolve().name,
        target=folder / "target",
        drafts={"draft": folder / "draft"},
    )


def find_pair(name: str) -> Models:
    """Return the models of a pair that has a draft model, as `find_models` does.

    Raises:
        ValueError: it is not here, or has none.
    """
    models = find_models(name)
    if not models.drafts:
        raise ValueError(f"pair {name!r} has no draft model")
    return models
