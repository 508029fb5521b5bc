"""Settings of a study: values of a full and of a quick run."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from loadtest.study.engines import LOOKUP
from models.config import DtypeName
from models.fetch.known import known_model

_QUICK: Mapping[str, Any] = {
    "temperatures": [0.0, 0.7],
    "k": [1, 3],
    "batch": [1, 4],
    "lengths": [8, 20],
    "tokens": 16,
    "num_prompts": 2,
    "repeats": 1,
    "pass_repeats": 3,
}
_FULL: Mapping[str, Any] = {
    "temperatures": [0.0, 0.3, 0.7, 1.0, 1.3],
    "k": [1, 2, 3, 4, 5, 6, 8],
    "batch": [1, 2, 4, 8, 16],
    "lengths": [8, 20, 200],
    "tokens": 64,
    "num_prompts": 8,
    "repeats": 3,
    "pass_repeats": 25,
}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The settings of one study.

    Sections that measure speed sample at `temperature`.
    """

    target: str  # label
    drafts: list[str]  # labels, in the order given
    prompts: str  # file or set
    tasks: list[str] | None  # tasks of the prompts; None: all
    temperatures: list[float]
    temperature: float
    k: list[int]
    batch: list[int]
    lengths: list[int]
    tokens: int  # tokens of an answer, at most
    num_prompts: int  # prompts of each task, at most
    repeats: int
    pass_repeats: int
    device: str
    dtype: DtypeName
    threads: int
    seed: int

    @classmethod
    def of(cls, arguments: argparse.Namespace, target: str, drafts: list[str]) -> Settings:
        """Read the settings from the command line.

        An option that is not given has the value of --quick or of the full run.
        """
        values = dict(_QUICK if arguments.quick else _FULL)
        for name in values:
            given = getattr(arguments, name)
            values[name] = values[name] if given is None else given
        for name in ("temperatures", "k", "batch", "lengths"):
            values[name] = sorted(set(values[name]))
        return cls(
            target=target,
            drafts=drafts,
            prompts=Path(arguments.prompts).name,
            tasks=arguments.tasks,
            temperature=arguments.temperature,
            device=arguments.device,
            dtype=arguments.dtype,
            threads=arguments.threads,
            seed=arguments.seed,
            **values,
        )

    @property
    def few_k(self) -> list[int]:
        """Three of the k at most, from the first on: for sections that do not study k."""
        num = len(self.k)
        return sorted({self.k[0], self.k[num // 3], self.k[2 * num // 3]})

    def check_same(self, kept: Mapping[str, Any]) -> None:
        """Refuse to go on with a study that was begun otherwise.

        Raises:
            ValueError: names the field and both values.
        """
        own = asdict(self)
        for field in fields(self):
            if kept.get(field.name) != own[field.name]:
                raise ValueError(
                    f"{field.name} was {kept.get(field.name)!r} when this study was begun, got "
                    f"{own[field.name]!r}: give another --output"
                )


def model_label(text: str) -> tuple[str, Path | None]:
    """[LABEL=]DIR as label and folder; `ngram` is prompt lookup and has no folder.

    DIR may be the name of a model that `python -m models.fetch` has fetched. If no label is given,
    it is the folder's name, after its parent's if it is `target` or `draft`.

    Raises:
        ValueError: the folder has no config.json, or the label a slash.
    """
    if text == LOOKUP:
        return LOOKUP, None
    label, _, directory = text.rpartition("=")
    known = known_model(directory)
    path = Path(directory) if known is None else known.folder
    if "/" in label:
        raise ValueError(f"label must have no /, got {label!r}")
    if not (path / "config.json").is_file():
        raise ValueError(f"{directory!r} has no config.json")
    return label or _name_of(path.resolve()), path


def _name_of(path: Path) -> str:
    return f"{path.parent.name}-{path.name}" if path.name in ("target", "draft") else path.name
