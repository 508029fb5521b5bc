"""Sentences with figures for the front page: when drafts pay, and the comparison with others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from loadtest.report.interleaved import median_ratio
from loadtest.report.readme.result import RESULTS, Result, goal, table
from loadtest.report.readme.since import age

Claim = Mapping[str, Any]  # of a record

_PEERS = {
    "SmolLM2": ("its best n-grams", ("llama-smollm2",)),
    "the 349M pair": ("its draft model or n-grams", ("llama-349m",)),
    "the demo pair": ("its draft model or n-grams", ("llama-demo",)),
}

_TO_PLAIN = "adaptive / k=0"
_STREAMS = {"one stream": range(1, 2), "four": range(2, 5), "eight or more": range(5, 1000)}
_KINDS = ("extraction", "context", "math", "knowledge")  # of prompts, by what drafts should bring

_OVER_LLAMA = "/ the best of llama"  # in claims that compare both sides' drafts


def sooner(seen_from: Path) -> str:
    """Compare adaptive k with no drafts over the cells of all scenarios, by streams at once."""
    paths = sorted(RESULTS.glob("scenarios-*.json"))
    results = [Result.load(path.stem, seen_from) for path in paths]
    found = [
        claim for one in results for claim in one["claims"] if claim["text"].endswith(_TO_PLAIN)
    ]
    by_batch = ", ".join(
        f"{_slower([one for one in found if _batch(one) in batches])} with {words}"
        for words, batches in _STREAMS.items()
    )
    values = [one["value"] for one in found]
    return (
        f"Adaptive k is {min(values):.2f} to {max(values):.2f} times as fast as plain decoding "
        f"over {len(values)} cells of {len(results)} pairs, {median(values):.2f} in the median. "
        f"It is slower in {_slower(found)}: {by_batch}; "
        f"in {sum(one['interval'][1] < 1 for one in found)} the whole 95% interval "
        f"is below 1 ({', '.join(map(_link, results))})."
    )


def _batch(claim: Claim) -> int:
    """Return the streams at once of a claim's cell: `http, story, batch 4: ...`."""
    return int(claim["text"].split("batch ")[1].split(":")[0])


def kinds(seen_from: Path) -> str:
    """Show four kinds of prompt, ordered by the gain of drafting."""
    result, rows = Result.load("kinds", seen_from), []
    for kind in _KINDS:
        ways = {one["way"]: one["runs"] for one in result["samples"] if one["workload"] == kind}
        plain, *drafted = (ways[way]["tokens_per_s"] for way in ("plain", "k=5", "adaptive"))
        in_round = ways["k=5"]["tokens_per_round"]
        shown = [f"{median(runs):.0f} ({median_ratio(runs, plain):.2f})" for runs in drafted]
        rows.append([kind, f"{median(plain):.0f}", *shown, f"{median(in_round):.1f}"])
    head = ["tokens/s over HTTP (times k = 0)", "k = 0", "k = 5", "adaptive k"]
    return f"{table([*head, 'tokens a round, k = 5'], rows)}\n\n{result.made_in_short()}"


def beside_others(seen_from: Path) -> str:
    """Speed over llama.cpp's and over plain decoding, the least and the most of each kind."""
    parts = []
    for pair, (what, names) in _PEERS.items():
        results = [Result.load(name, seen_from) for name in names]
        claims = [
            claim
            for result in results
            for claim in result["claims"]
            if _OVER_LLAMA in claim["text"]
        ]
        links = ", ".join(_link(result) for result in results)
        parts.append(f"{pair} {_range(claims)} times llama.cpp with {what} ({links})")
    for words, name, way in (
        ("the demo", "heads", "mtp"),
        ("SmolLM2", "kinds-heads", "heads alone"),
    ):
        result = Result.load(name, seen_from)
        claims = [claim for claim in result["claims"] if f"{way} / plain" in claim["text"]]
        num_met = sum(claim["is_met"] for claim in claims)
        found = _gains(result, way)
        parts.append(
            f"{words} with heads {min(found):.2f} to {max(found):.2f} times plain decoding, "
            f"{num_met} of {len(claims)} aims met ({_link(result)})"
        )
    return f"Tokens a second: {'; '.join(parts)}."


def _link(result: Result) -> str:
    """Link to the record by its date, and say what it was measured before."""
    missed = age(result.name, result["machine"]["date"])
    words = f", {missed[0].lower()}{missed[1:-1]}" if missed else ""
    return f"[{result['machine']['date']}]({result.path}){words}"


def _gains(result: Result, way: str) -> list[float]:
    """Return the ratios of a way to plain decoding, one for each cell of an experiment."""
    runs = {
        (one["workload"], one["batch"], one["way"]): one["runs"]["tokens_per_s"]
        for one in result["samples"]
    }
    return [
        median_ratio(runs[workload, batch, way], plain)
        for (workload, batch, name), plain in runs.items()
        if name == "plain"
    ]


def _slower(ratios: Sequence[Claim]) -> str:
    return f"{sum(one['value'] < 1 for one in ratios)} of {len(ratios)}"


def _range(claims: Iterable[Claim]) -> str:
    """Show the least and the most, and the aim of the least."""
    ordered = sorted(claims, key=lambda claim: claim["value"])
    least, most = ordered[0], ordered[-1]
    wanted = goal(least["value"], least["relation"], least["goal"])
    return f"{least['value']:.1f} ({wanted}) to {most['value']:.1f}"
