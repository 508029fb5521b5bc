"""The record of a benchmark: one JSON file, written again after every step.

A run that is cut short keeps its measurements. Pairs go by their labels, so the file names no
directory of the machine.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from loadtest.bench.loop import SPLIT, LoopRun
from loadtest.report.record import head, write_json


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

    def __init__(
        self, path: Path | None, module: str, words: Sequence[str], settings: Mapping[str, Any]
    ) -> None:
        self._path = path
        self.content: dict[str, Any] = {
            **head(f"python -m {module}", words, settings),
            "is_complete": False,
            "pairs": {},
        }

    def pair(self, label: str) -> dict[str, Any]:
        """Return the record of one pair: `lines`, and the measurements by part."""
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
        """Write the file, where there is one."""
        write_json(self._path, self.content)


# --- for people -----------------------------------------------------------------------------------


def print_pair(label: str, content: dict[str, Any]) -> None:
    """Print all tables of one pair, from its part of the record."""
    print(f"\n== {label}")
    for part in ("target", "draft"):
        if part in content:
            _print_passes(part, content[part])
    if content["lines"]:
        _print_lines(content["lines"])
    if "gaps" in content:
        _print_gaps(content["gaps"])


def _print_passes(part: str, values: dict[str, Any]) -> None:
    print(f"\n{part + ' pass':16}{'rows':>6}{'ms':>9}{'products':>10}{'ratio':>7}{'to 1 row':>10}")
    for line in values["passes"]:
        print(
            f"{line['name']:16}{line['num_rows']:>6}{line['pass_ms']:>9.2f}"
            f"{line['products_ms']:>10.2f}{line['ratio']:>7.2f}{line['to_one_row']:>10.2f}"
        )
    if "memory_floor_ms" in values:
        print(f"weights at the speed of copying: {values['memory_floor_ms']:.2f} ms")


def _print_lines(lines: list[dict[str, Any]]) -> None:
    print(
        f"\n{'':8}{'':22}{'batch':>6}{'tokens/s':>10}{'length':>8}{'rate':>6}{'k':>5}"
        + "".join(f"{part:>9}" for part in SPLIT)
        + "   (ms per round)"
    )
    for line in lines:
        text = f"{line['where']:8}{line['way']:22}{line['batch']:>6}{line['tokens_per_s']:>10.1f}"
        if line["round_ms"]:
            text += (
                f"{line['tokens_per_round']:>8.2f}{line['acceptance']:>6.2f}{line['mean_k']:>5.1f}"
            )
            text += "".join(f"{line['round_ms'][part]:>9.3f}" for part in SPLIT)
        print(text)


def _print_gaps(runs: list[dict[str, Any]]) -> None:
    print(
        f"\n{'a stream beside a long prompt':30}{'gap before':>11}{'worst':>8}{'beside':>8}"
        f"{'worst':>8}{'ratio':>7}   {'first token of the prompt'}"
    )
    for run in runs:
        name = f"{run['way']}, {run['num_prompt_tokens']} tokens"
        print(
            f"{name:30}{run['quiet_ms']:>8.1f} ms{run['quiet_worst_ms']:>8.1f}"
            f"{run['beside_ms']:>8.1f}{run['beside_worst_ms']:>8.1f}{run['slowdown']:>7.2f}"
            f"   {run['first_token_s']:.2f} s, alone {run['alone_first_token_s']:.2f} s"
        )
