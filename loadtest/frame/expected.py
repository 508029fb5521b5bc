"""Measured speed beside the textbook's (`theory.py`), and the k to set, from a result's rows.

A row needs a fixed k, plain decoding in its cell, and the measures of `NEEDED`. Times are those of
the router's waits. So they are of passes only where one request runs at a time, in one process.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from loadtest.frame.claims import Row, cells
from loadtest.frame.theory import constant_tokens, position_tokens, speed_up
from loadtest.frame.ways import Way
from loadtest.report.interleaved import median_ratio

PLACES = tuple(f"accepted_at_{place}" for place in range(1, 9))
NEEDED = ("token_acceptance", "tokens_per_round", "drafted_share", "draft_ms", "verify_ms")
_AS_GOOD = 0.97  # part of the best speed: within the spread of one run


def beside_theory(rows: Sequence[Row], ways: Mapping[str, Way]) -> list[dict[str, Any]]:
    """Return a row for each cell and fixed k: measured and expected tokens of a round, and speed.

    `by_position` has the acceptance at each place of the longest draft by the same drafter.
    `with_growth` is the tokens of all rounds over their measured time. There a longer pass takes
    longer, and some rounds find no draft.
    """
    found = []
    for cell, measured in cells(rows).items():
        fixed = {
            name: row
            for name, row in measured.items()
            if name in ways and ways[name].k and set(NEEDED) <= row["runs"].keys()
        }
        plain = next((row for n, row in measured.items() if n in ways and ways[n].k == 0), None)
        if plain is None or not fixed:
            continue
        pass_ms = _median(plain, "verify_ms")
        longest = {
            _drafter(ways[name]): row
            for name, row in sorted(fixed.items(), key=lambda one: ways[one[0]].k or 0)
        }
        for name, row in fixed.items():
            hazards = [_median(longest[_drafter(ways[name])], place) for place in PLACES]
            known = {
                "where": ", ".join(map(str, cell)),
                "way": name,
                "measured": _ratio(row, plain),
            }
            found.append(known | _expected(row, ways[name].k or 0, pass_ms, hazards))
    return found


def _expected(row: Row, k: int, pass_ms: float, hazards: Sequence[float]) -> dict[str, float]:
    share, draft_ms = _median(row, "drafted_share"), _median(row, "draft_ms")
    acceptance = _median(row, "token_acceptance")
    cost = draft_ms / (k * max(share, 1e-9)) / pass_ms
    by_position = position_tokens(hazards, k)
    rounds = (_median(row, "verify_ms") + draft_ms) / pass_ms
    return {
        "acceptance": acceptance,
        "cost": cost,
        "tokens_per_round": _median(row, "tokens_per_round"),
        "constant": constant_tokens(acceptance, k),
        "by_position": by_position,
        "speed_up": speed_up(constant_tokens(acceptance, k), k, cost),
        "with_growth": (1 + share * (by_position - 1)) / rounds,
    }


def theory_table(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the rows of `beside_theory` as a Markdown table."""
    if not found:
        return []
    names = list(found[0])[2:]
    lines = [f"| where | way | {' | '.join(names)} |", f"|---|---|{'---|' * len(names)}"]
    for one in found:
        figures = " | ".join(f"{one[name]:.2f}" for name in names)
        lines.append(f"| {one['where']} | {one['way']} | {figures} |")
    return lines


def advice(rows: Sequence[Row], base: str) -> Iterator[str]:
    """Yield the fastest way of each cell, and those that are within 3% of it."""
    for cell, ways in cells(rows).items():
        if base not in ways:
            continue
        gains = {name: _ratio(row, ways[base]) for name, row in ways.items()}
        best = max(gains, key=lambda name: gains[name])
        good = [n for n, gain in gains.items() if n != best and gain >= _AS_GOOD * gains[best]]
        also = f"; as good: {', '.join(good)}" if good else ""
        yield f"{', '.join(map(str, cell))}: {best} is {gains[best]:.2f} times {base}{also}"


def _drafter(way: Way) -> str:
    """Return all that ways of the same drafter have in common."""
    return repr(replace(way, k=None))


def _median(row: Row, measure: str) -> float:
    return statistics.median(row["runs"].get(measure, [0.0]))


def _ratio(row: Row, plain: Row) -> float:
    measure = next(iter(row["runs"]))
    own, other = row["runs"][measure], plain["runs"][measure]
    return median_ratio(own, other) if min(other) > 0 else 0.0
