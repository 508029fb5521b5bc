"""Figures of the comparison with llama.cpp: plain and best drafted, both sides, and the aims."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.report.readme.result import Result, goal, table

_PLACES = {"engine": "in one process", "http": "over HTTP"}
_PLAIN = "plain"

Line = Mapping[str, Any]


def peer(result: Result) -> str:
    """Tokens per second after the first of each task, by threads and place."""
    groups: dict[tuple[str, int, str], list[Line]] = {}
    for line in result["lines"]:
        groups.setdefault((line["where"], line["threads"], line["task"]), []).append(line)
    sides = list(dict.fromkeys(line["side"] for line in result["lines"]))
    columns = [
        (side, is_plain)
        for side in sides
        for is_plain in (True, False)
        if any(_fits(line, side, is_plain) for line in result["lines"])
    ]
    head = [
        "tokens/s",
        *(f"{side}, {'k = 0' if is_plain else 'best drafted'}" for side, is_plain in columns),
    ]
    rows = [
        [
            f"{_PLACES[where]}, {threads} thread{'s' if threads > 1 else ''}, {task}",
            *(_best(lines, side, is_plain) for side, is_plain in columns),
        ]
        for (where, threads, task), lines in sorted(groups.items())
    ]
    made = f"{result.made()} Runs of the command that added to the file: {len(result['commands'])}."
    return f"{table(head, rows)}\n\n{_claims(result)}\n\n{made}"


def _best(lines: Sequence[Line], side: str, is_plain: bool) -> str:
    found = [line for line in lines if _fits(line, side, is_plain)]
    if not found:
        return "-"
    best = max(found, key=lambda line: float(line["tokens_per_s"]))
    rate = f"{best['tokens_per_s']:.0f}"
    return rate if is_plain else f"{rate} ({best['way']})"


def _fits(line: Line, side: str, is_plain: bool) -> bool:
    return line["side"] == side and (line["way"] == _PLAIN) == is_plain


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
