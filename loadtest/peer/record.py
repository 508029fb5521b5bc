"""The record of a comparison: one JSON file, to which later runs of the command may add.

Such runs are short on a shared machine: each adds some threads, tasks or further turns. A line's
runs follow each other in the order of their measurement. So turns of different lines pair up only
if every run had the same ways. Another set of ways is refused.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from loadtest.peer.claims import peer_claims
from loadtest.peer.timed import Key, PeerLine, Timed
from loadtest.report.record import head, write_json

_PROGRAM = "python -m loadtest.peer"
_FIXED = ("ways", "num_tokens", "dtype")  # settings that every added run must share


class PeerRecord:
    """The lines and the file they are written to.

    Args:
        path: of the file; None: none is written.
        words: the command's arguments.
        settings: as the file shows them; those of `_FIXED` decide what may be added.
        adds: whether lines that the file has already are kept and added to.

    Raises:
        ValueError: the file has other settings, or is none of this command's.
    """

    def __init__(
        self, path: Path | None, words: Sequence[str], settings: Mapping[str, Any], *, adds: bool
    ) -> None:
        self._path = path
        self._lines: dict[Key, PeerLine] = {}
        self._head = head(_PROGRAM, words, settings)
        self._commands: list[object] = []
        self._alike: list[dict[str, object]] = []
        if adds and path is not None and path.is_file():
            self._read(json.loads(path.read_text(encoding="utf-8")), settings)
        self._commands.append(self._head["command"])
        self.skipped = ""

    @property
    def lines(self) -> list[PeerLine]:
        """All lines, in the order in which they were first measured."""
        return list(self._lines.values())

    def num_runs(self, key: Key) -> int:
        """Return how many runs a line has so far."""
        return len(self._lines[key].runs) if key in self._lines else 0

    def add(self, runs: Mapping[Key, Sequence[list[Timed]]]) -> None:
        """Take further runs of lines, and write."""
        for key, values in runs.items():
            self._lines.setdefault(key, PeerLine(key)).runs += values
        self._write(is_complete=False)

    def note_alike(self, ours: Key, theirs: Key) -> None:
        """Keep how many of the first tokens are the same in the last run of two lines."""
        last = (self._lines[key].runs[-1] for key in (ours, theirs))
        pairs = [(a.token_ids, b.token_ids) for a, b in zip(*last, strict=True)]
        self._alike.append(
            {
                "threads": ours.threads,
                "task": ours.task,
                "num_alike": [num_alike(*pair) for pair in pairs],
                "of": [min(map(len, pair)) for pair in pairs],
            }
        )

    def finish(self) -> None:
        """Mark the file as whole, and write."""
        self._write(is_complete=True)

    def _read(self, content: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
        known = content.get("settings", {})
        for name in _FIXED:
            if known.get(name) != json.loads(json.dumps(settings[name])):
                raise ValueError(
                    f"--add: {self._path} was made with {name} {known.get(name)!r}, "
                    f"not {settings[name]!r}"
                )
        self._commands = list(content["commands"])
        self._alike = list(content["alike"])
        for values in content["lines"]:
            line = PeerLine.of_record(values)
            self._lines[line.key] = line

    def _write(self, *, is_complete: bool) -> None:
        content = {
            **self._head,
            "commands": self._commands,
            "is_complete": is_complete,
            "skipped": self.skipped,
            "alike": self._alike,
            "lines": [line.record() for line in self.lines],
            "claims": [claim.record() for claim in peer_claims(self.lines)],
        }
        write_json(self._path, content)


def num_alike(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common beginning of two answers, in tokens."""
    return next(
        (place for place, (a, b) in enumerate(zip(one, other, strict=False)) if a != b),
        min(len(one), len(other)),
    )


def print_lines(lines: Sequence[PeerLine]) -> None:
    """Print a table of all lines, with compared lines next to each other."""
    print(
        f"\n{'where':8}{'threads':>8}  {'task':12}{'side':14}{'way':22}"
        f"{'tokens/s':>9}{'accepted':>10}"
    )
    for line in lines:
        key = line.key
        print(
            f"{key.where:8}{key.threads:>8}  {key.task:12}{key.side:14}{key.way:22}"
            f"{line.tokens_per_s:>9.1f}{line.acceptance:>10.2f}"
        )
