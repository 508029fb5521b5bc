"""What a benchmark has found so far: one JSON file, written again after every step.

A run that is cut short keeps what it measured. Pairs go by their labels: the file names no
directory of the machine.
"""

from __future__ import annotations

import json
import shlex
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadtest.bench.loop import LoopRun
from loadtest.report.machine import describe_machine


@dataclass(frozen=True)
class PairPath:
    """A pair of checkpoints and what it is called in tables."""

    label: str
    path: Path  # holds target/ and draft/

    @classmethod
    def parse(cls, text: str) -> PairPath:
        """LABEL=DIR, or DIR, whose last part is the label then.

        Raises:
            ValueError: DIR has no target/ or draft/.
        """
        label, _, directory = text.rpartition("=")
        path = Path(directory)
        for part in ("target", "draft"):
            if not (path / part / "config.json").is_file():
                raise ValueError(f"pair {directory!r} has no {part}/config.json")
        return cls(label or path.resolve().name, path)


@dataclass(frozen=True)
class Line:
    """One way to serve the same prompts; the medians of its runs."""

    where: str  # engine, link or http
    way: str  # "k=3", "adaptive", "bare engine", "transformers", "assisted k=3", ...
    batch: int
    tokens_per_s: float
    runs: list[float]  # tokens/s of each, in order of repeats
    tokens_per_round: float = 1.0
    acceptance: float = 0.0
    mean_k: float = 0.0
    round_ms: dict[str, float] = field(default_factory=dict)


def line_of(where: str, way: str, batch: int, runs: Sequence[LoopRun | float]) -> Line:
    """Medians over runs; a number is a run of which only tokens/s is known."""
    rates = [run.tokens_per_s if isinstance(run, LoopRun) else run for run in runs]
    detailed = [run for run in runs if isinstance(run, LoopRun)]
    if not detailed:
        return Line(where, way, batch, statistics.median(rates), rates)
    parts = detailed[0].round_ms
    return Line(
        where,
        way,
        batch,
        statistics.median(rates),
        rates,
        tokens_per_round=statistics.median(run.tokens_per_round for run in detailed),
        acceptance=statistics.median(run.acceptance for run in detailed),
        mean_k=statistics.median(run.mean_k for run in detailed),
        round_ms={
            part: statistics.median(run.round_ms[part] for run in detailed) for part in parts
        },
    )


class Record:
    """The content of the file. `pair(label)` is a dict that callers fill."""

    def __init__(self, path: Path | None, command: str, settings: Mapping[str, Any]) -> None:
        self._path = path
        self.content: dict[str, Any] = {
            "command": command,
            "machine": describe_machine(),
            "settings": dict(settings),
            "is_complete": False,
            "pairs": {},
        }

    def pair(self, label: str) -> dict[str, Any]:
        """What is known of one pair: `lines`, and by part whatever was measured."""
        pairs: dict[str, Any] = self.content["pairs"]
        return pairs.setdefault(label, {"lines": []})

    def add_lines(self, label: str, lines: Sequence[Line]) -> None:
        """Append lines of a pair, and write."""
        self.pair(label)["lines"] += [asdict(line) for line in lines]
        self.write()

    def put(self, label: str, part: str, values: Any) -> None:
        """Set a part of a pair, and write."""
        self.pair(label)[part] = values
        self.write()

    def finish(self, **parts: Any) -> None:
        """Mark the run as whole, and write."""
        self.content |= parts
        self.content["is_complete"] = True
        self.write()

    def write(self) -> None:
        """Write the file, so that a reader sees either the last state or this one."""
        if self._path is None:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        part = self._path.with_suffix(".part")
        part.write_text(json.dumps(self.content, indent=1) + "\n", encoding="utf-8")
        part.replace(self._path)


def public_command(module: str, argv: Sequence[str]) -> str:
    """The command line without directories: of a path only the label or the last part stays."""
    words = []
    for word in argv:
        label, is_labelled, _ = word.rpartition("=")
        if is_labelled and not label.startswith("-"):
            words.append(label)
        else:
            words.append(Path(word).name if "/" in word else word)
    return shlex.join(["python", "-m", module, *words])
