"""Figures of speed: the bench, acceptance, simulated planners."""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from loadtest.report.readme.result import Result, claims_table, table

_PLACES = {
    "engine": "in one process",
    "link": "a process each for draft and target",
    "http": "over HTTP",
}


def bench(result: Result) -> str:
    """Tokens per second of every way that was run, and what was aimed for."""
    (pair,) = result["pairs"].values()
    batches = sorted({line["batch"] for line in pair["lines"]})
    rows = [
        [f"{_PLACES[place]}, {_way(way)}", *_speeds(pair, place, way, batches)]
        for place, way in dict.fromkeys((line["where"], line["way"]) for line in pair["lines"])
    ]
    speeds = table(["tokens/s", *(f"batch {batch}" for batch in batches)], rows)
    return f"{speeds}\n\n{claims_table(pair)}\n\n{result.made()}"


def acceptance(result: Result) -> str:
    """Tokens per round at k = 4 next to what two formulas predict of the measured acceptance."""
    head = ["k = 4", "acceptance rate", "tokens per round", "constant rate", "by position"]
    rows = []
    for study in result["studies"]:
        analysis = study["analysis"]
        line = next(line for line in analysis["lines"] if line["k"] == 4)
        values = [line["measured"]["value"], line["constant"], line["by_position"]]
        rows.append(
            [
                f"{study['workload']}, {study['rule']}",
                f"{analysis['acceptance']['value']:.2f}",
                *(f"{value:.2f}" for value in values),
            ]
        )
    return f"{table(head, rows)}\n\n{result.made()}"


def simulated(result: Result) -> str:
    """Tokens per second of two ways to choose k, over those of the best fixed k, by machine."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for line in result["samples"]:
        groups.setdefault(line["name"].split()[0], []).append(line)
    rows = []
    for machine, lines in groups.items():
        cells = []
        for policy in ("joint", "alone"):
            shares = [line[f"{policy}_share"] for line in lines]
            worst = lines[shares.index(min(shares))]["name"].removeprefix(machine).strip()
            cells += [f"{statistics.median(shares):.2f}", f"{min(shares):.2f} ({worst})"]
        rows.append([machine, str(len(lines)), *cells])
    head = ["simulated machine", "scenarios", "planned together: median", "worst"]
    return f"{table([*head, 'each session alone: median', 'worst'], rows)}\n\n{result.made()}"


def _lines(pair: Mapping[str, Any], place: str, batch: int) -> list[dict[str, Any]]:
    return [line for line in pair["lines"] if (line["where"], line["batch"]) == (place, batch)]


def _speeds(pair: Mapping[str, Any], place: str, way: str, batches: Sequence[int]) -> list[str]:
    found = {
        line["batch"]: line["tokens_per_s"]
        for line in pair["lines"]
        if (line["where"], line["way"]) == (place, way)
    }
    return [f"{found[batch]:,.0f}" if batch in found else "-" for batch in batches]


def _way(way: str) -> str:
    """`assisted k=5` as a reader knows it."""
    way = re.sub(r"\bk=(\d+)", r"k = \1", way)
    way = way.replace("bare engine", "the engine without the router")
    return way.replace("assisted", "transformers with `assistant_model`,")
