"""The pairs of the scenarios by name: where they are, and the prompts they are asked.

A pair that is not on this machine is no error: its scenarios are left out, with the reason.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache as remembered
from itertools import cycle, islice
from pathlib import Path

from loadtest.kinds import read_prompts
from loadtest.report.machine import ROOT
from loadtest.report.prompts import demo_prompts
from loadtest.scenarios.asks import PromptSource
from loadtest.scenarios.catalog import DEMO, GROWN, LARGE, SMOLLM2, TURNING
from loadtest.scenarios.growing import DONE
from models.fetch.known import SMOLLM2 as FETCHED
from models.text.tokenizer import Tokenizer

# Our own prompts by kind of what the scenarios call it.
_REAL_KINDS = {"story": "writing", "code": "coding", "extraction": "extraction"}


class MissingError(Exception):
    """A pair is not on this machine; the text says how it would come here."""


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Checkpoints, and what they are asked.

    `draft` None: prompt lookup drafts. `later_draft`: of the same size as `draft`, in its place
    after half of the requests; None: the draft stays.
    """

    target: Path
    draft: Path | None
    later_draft: Path | None = None
    prompts: PromptSource


def find_pair(name: str, cache: Path) -> Pair:
    """Return the pair of that name.

    Args:
        name: as the scenarios call it.
        cache: folder of grown pairs.

    Raises:
        MissingError: it is not here.
    """
    if name == SMOLLM2:
        return _smollm2()
    if name == DEMO:
        return _with_draft(ROOT / "models" / "demo")
    if name == LARGE:
        return _with_draft(_in_cache(cache, name, f"python -m loadtest.bench --grow {LARGE}"))
    first, later = TURNING.get(name, (name, None))
    assert first in GROWN, f"the catalog has a pair {name} that nobody can make"
    command = "python -m loadtest.scenarios --grow"
    pair = _with_draft(_in_cache(cache, first, command))
    if later is None:
        return pair
    later_draft = _in_cache(cache, later, command) / "draft"
    return Pair(
        target=pair.target, draft=pair.draft, later_draft=later_draft, prompts=_always_stories
    )


def _with_draft(path: Path) -> Pair:
    return Pair(target=path / "target", draft=path / "draft", prompts=_demo_prompts)


def _in_cache(cache: Path, name: str, command: str) -> Path:
    if not (cache / name / DONE).is_file():  # written last
        raise MissingError(f"{name} is not in the cache; it is made by: {command}")
    return cache / name


def _smollm2() -> Pair:
    if not (FETCHED.folder / "config.json").is_file():
        raise MissingError(
            f"{FETCHED.name} is not here; it is brought by: "
            f"python -m models.fetch {FETCHED.command}"
        )
    return Pair(target=FETCHED.folder, draft=None, prompts=_real_prompts)


def _demo_prompts(kind: str, count: int) -> list[list[int]]:
    return demo_prompts(count, kind=kind)


def _always_stories(kind: str, count: int) -> list[list[int]]:
    """Acceptance is fitted on stories; where the draft turns, the prompts need not."""
    return demo_prompts(count, kind="story")


def _real_prompts(kind: str, count: int) -> list[list[int]]:
    """Return the prompts of a kind, repeated if they are too few."""
    texts = read_prompts()[_REAL_KINDS[kind]]
    tokenizer = _tokenizer()
    return [
        tokenizer.encode_chat([{"role": "user", "content": text}])
        for text in islice(cycle(texts), count)
    ]


@remembered
def _tokenizer() -> Tokenizer:
    return Tokenizer.load(FETCHED.folder)
