"""Figures of the comparison with llama.cpp: plain and best drafted, both sides, and the aims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.report.readme.result import Result, goal, table

_PLACES = {"engine": "in one process", "http": "over HTTP"}
_PLAIN = "plain"
_NO_DRAFT, _ANY = "k = 0", "best drafted"
_KINDS = {"draft ": "draft model", "ngram": "n-grams"}  # by how ways are called

Line = Mapping[str, Any]


def peer(result: Result) -> str:
    """Tokens per second after the first of each task, by threads and place."""
    groups: dict[tuple[str, int, str], list[Line]] = {}
    for line in result["lines"]:
        groups.setdefault((line["where"], line["threads"], line["task"]), []).append(line)
    columns = _columns(result["lines"])
    head = [
        "tokens/s",
        *(f"{side}, {kind}" for side, kind in columns),
    ]
    rows = [
        [
            f"{_PLACES[where]}, {threads} thread{'s' if threads > 1 else ''}, {task}",
            *(_best(lines, side, kind) for side, kind in columns),
        ]
        for (where, threads, task), lines in sorted(groups.items())
    ]
    made = f"{result.made()} Runs of the command that added to the file: {len(result['commands'])}."
    return f"{table(head, rows)}\n\n{_claims(result)}\n\n{made}"


def _columns(lines: Sequence[Line]) -> list[tuple[str, str]]:
    """Return the columns: for each side plain decoding, and its best drafted way or kinds."""
    columns: list[tuple[str, str]] = []
    for side in dict.fromkeys(line["side"] for line in lines):
        kinds = sorted({_kind(line) for line in lines if line["side"] == side})
        drafted = [kind for kind in kinds if kind != _NO_DRAFT]
        columns += [(side, kind) for kind in kinds if kind == _NO_DRAFT]
        columns += [
            (side, kind) for kind in (drafted if len(drafted) > 1 else [_ANY][: len(drafted)])
        ]
    return columns


def _kind(line: Line) -> str:
    """Return the kind of drafter: none, a draft model, n-grams, or the side's own choice."""
    way = str(line["way"])
    if way == _PLAIN:
        return _NO_DRAFT
    return next((kind for start, kind in _KINDS.items() if way.startswith(start)), _ANY)


def _best(lines: Sequence[Line], side: str, kind: str) -> str:
    found = [
        line
        for line in lines
        if line["side"] == side
        and (_kind(line) == kind or (kind == _ANY and _kind(line) != _NO_DRAFT))
    ]
    if not found:
        return "-"
    best = max(found, key=lambda line: float(line["tokens_per_s"]))
    rate = f"{best['tokens_per_s']:.0f}"
    return rate if kind == _NO_DRAFT else f"{rate} ({best['way']})"


def _claims(result: Result) -> str:
    rows = [
        [
            claim["text"],
            "{:.2f} ({:.2f} to {:.2f})".format(claim["value"], *claim["interval"]),
            goal(claim["value"], claim["relation"], claim["goal"]),
        ]
        for claim in result["claims"]
    ]
    return table(["aim", "measured (95% interval)", "wanted"], rows)
