"""Figures of the decision records in `.github/decisions`: what was chosen, next to what was not."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from loadtest.report.readme.result import Result, goal, table

_ROWS = ("1x1", "1x2", "1x6", "4x1", "4x6", "8x1", "8x6")  # sessions x rows of each in a pass


def link(result: Result) -> str:
    """Tokens per second at k = 0 through the link, and of the engine alone."""
    (pair,) = result["pairs"].values()
    speed = {line["way"]: line["tokens_per_s"] for line in pair["lines"] if line["where"] == "link"}
    (claim,) = (claim for claim in pair["claims"] if "through the link" in claim["text"])
    row = [
        f"{speed['bare engine']:.0f}",
        f"{speed['k=0']:.0f}",
        f"{claim['value']:.2f}",
        goal(claim["value"], claim["relation"], claim["goal"]),
    ]
    head = [
        "tokens/s, engine alone",
        "through the link",
        "time, times that alone (median of runs)",
        "wanted",
    ]
    return f"{table(head, [row])}\n\n{result.made()}"


def adaptive_k(result: Result) -> str:
    """Tokens per second in one process by batch: plain, best fixed k, adaptive."""
    (pair,) = result["pairs"].values()
    lines = [line for line in pair["lines"] if line["where"] == "engine"]
    rows = []
    for batch in sorted({line["batch"] for line in lines}):
        speed = {line["way"]: line["tokens_per_s"] for line in lines if line["batch"] == batch}
        best = max(
            (way for way in speed if way.startswith("k=") and way != "k=0"), key=speed.__getitem__
        )
        share = speed["adaptive"] / speed[best]
        values = [f"{speed['k=0']:.0f}", f"{speed[best]:.0f} ({best.replace('=', ' = ')})"]
        rows.append([str(batch), *values, f"{speed['adaptive']:.0f}", f"{share:.2f}"])
    head = ["batch", "k = 0", "best fixed k", "adaptive", "adaptive / best fixed"]
    return f"{table(head, rows)}\n\n{result.made()}"


def slow_schemas(result: Result) -> str:
    """Show a stream's longest gap while slow schemas are compiled, and the answers to these."""
    gaps, ratios = result["longest_gap_s"], result["ratio_to_quiet"]
    rows = [
        [kind, f"{gaps[kind] * 1e3:.0f} ms", f"{ratios[kind]:.2f}"] for kind in ("quiet", "schemas")
    ]
    longest = table(["attack", "longest gap of a stream", "times quiet"], rows)
    counts = result["answers"]
    kinds = dict.fromkeys(
        name.split(": ")[1] for name in counts if name.startswith("schema: ")
    )  # names are "schema: KIND: STATUS"
    answered = [
        [kind, *(str(counts.get(f"schema: {kind}: {status}", 0)) for status in (200, 400))]
        for kind in kinds
    ]
    statuses = table(["kind of schema", "served", "refused by name"], answered)
    return f"{longest}\n\n{statuses}\n\n{result.made()}"


def passes(result: Result) -> str:
    """Times of the target's passes, over their products and over a pass of one row."""
    (pair,) = result["pairs"].values()
    by_name = {line["name"]: line for line in pair["target"]["passes"]}
    rows = [_pass(by_name[name]) for name in _ROWS]
    head = ["sessions x rows of each", "pass", "its products", "pass / products", "/ pass of 1 row"]
    return f"{table(head, rows)}\n\n{result.made()}"


def _pass(line: dict[str, Any]) -> Sequence[str]:
    times = [f"{line[key]:.1f} ms" for key in ("pass_ms", "products_ms")]
    return [line["name"], *times, f"{line['ratio']:.2f}", f"{line['to_one_row']:.2f}"]
