"""The page of figures, made of all kept records: `python -m loadtest --page` writes it.

Each record has its question, its tables, its missed aims and its origin there. Nobody edits it.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from loadtest.frame.claims import cells
from loadtest.report.interleaved import median_ratio
from loadtest.report.machine import ROOT
from loadtest.report.record import SAMPLES

RESULTS = ROOT / "loadtest" / "results"
PAGE = RESULTS / "README.md"
_TOTAL = "all"  # a workload that is the sum of the others
_MOST_COLUMNS = 5  # of ways; a trial's events are more
_HEAD = """# Figures

Generated from the records in this folder by `python -m loadtest --page`; nobody edits it. A cell of
a table has a median. Behind those of the first measure, unless it is a count, stands the ratio to
the first way within a turn, as a median of the turns. An aim that was missed stays here as missed.
"""


def records() -> dict[str, dict[str, Any]]:
    """Return the kept records of experiments by name; other results are not read."""
    found = {}
    for path in sorted(RESULTS.glob("*.json")):
        content = json.loads(path.read_text(encoding="utf-8"))
        if {"question", SAMPLES, "claims"} <= set(content):
            found[path.stem] = content
    return found


def page() -> str:
    """Return the text of the page."""
    parts = [_HEAD]
    for name, record in records().items():
        parts += [f"## {name}\n", *_section(name, record), ""]
    return "\n".join(parts).rstrip() + "\n"


def _section(name: str, record: Mapping[str, Any]) -> Iterator[str]:
    yield f"{record['question'].capitalize()}?\n"
    yield from tables(record[SAMPLES])
    yield ""
    yield verdict(record)
    yield ""
    yield made(name, record)


def tables(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table for the rows of each first measure.

    It is by way, or by measure where there are many ways, or only one.
    """
    groups: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(next(iter(row["runs"]), ""), []).append(row)
    for number, group in enumerate(groups.values()):
        totals = [row for row in group if row["workload"] == _TOTAL] or group
        num_ways, num_cells = len({row["way"] for row in totals}), len(cells(totals))
        has_one_way = num_ways == 1 and len(totals[0]["runs"]) > 1
        if number:
            yield ""
        is_long = num_ways > _MOST_COLUMNS and num_cells <= 2
        yield from by_measure(totals) if is_long or has_one_way else by_way(totals)


def by_way(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table of the first measure: a line for each cell, a column for each way."""
    names = list(dict.fromkeys(row["way"] for row in rows))
    measure = next(iter(rows[0]["runs"]), "")
    yield f"| {measure} | {' | '.join(names)} |"
    yield f"|---|{'---|' * len(names)}"
    for cell, ways in cells(rows).items():
        runs = {name: row["runs"].get(measure) for name, row in ways.items()}
        base = runs.get(names[0])
        figures = [_figure(runs.get(name), None if name == names[0] else base) for name in names]
        yield f"| {', '.join(map(str, cell))} | {' | '.join(figures)} |"


def by_measure(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a table of all measures: a line for each way."""
    measures = list(dict.fromkeys(measure for row in rows for measure in row["runs"]))
    yield f"| way | {' | '.join(measures)} |"
    yield f"|---|{'---|' * len(measures)}"
    found = cells(rows)
    for cell, ways in found.items():
        first, *_ = ways.values()
        for name, row in ways.items():
            base = None if row is first else first["runs"].get(measures[0])
            figures = [
                _figure(row["runs"].get(measure), base if measure == measures[0] else None)
                for measure in measures
            ]
            where = f"{cell[1]}, " if len(found) > 1 else ""
            yield f"| {where}{name} | {' | '.join(figures)} |"


def _figure(runs: Sequence[float] | None, base: Sequence[float] | None) -> str:
    if not runs:
        return "-"
    middle = f"{statistics.median(runs):.4g}"
    is_count = all(isinstance(value, int) for value in runs)
    if not base or len(base) != len(runs) or min(base) <= 0 or is_count:
        return middle
    return f"{middle} ({median_ratio(runs, base):.2f})"


def verdict(record: Mapping[str, Any]) -> str:
    """Say how many aims were met, and name those that were missed."""
    claims = record["claims"]
    if not record.get("is_complete", True):
        return "The run was cut: **not complete**."
    if not claims:
        return "It has no aims."
    missed = [claim for claim in claims if not claim["is_met"]]
    text = f"{len(claims) - len(missed)} of {len(claims)} aims were met."
    listed = [
        f"- **missed**: {claim['text']}: {claim['value']:.2f} ({claim['relation']} "
        f"{claim['goal']:.3g})"
        for claim in missed
    ]
    return "\n".join([text, *([""] if listed else []), *listed])


def made(name: str, record: Mapping[str, Any]) -> str:
    """Say how, when and on what a record was measured."""
    machine = record["machine"]
    where = f"{machine['processor']}, {machine['cores']} cores, torch {machine['torch']}"
    picture = f", [picture]({name}.png)" if (RESULTS / f"{name}.png").is_file() else ""
    return f"`{record['command']}`, {machine['date']}, {where} ([record]({name}.json){picture})."
