"""The ratios the project promises, from one run: each with its goal, and whether it was met.

Rates that are compared were measured by turns, so ratios are taken within a repeat.
"""

from __future__ import annotations

import re
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from loadtest.report.interleaved import median_ratio
from loadtest.report.ratios import Estimate, ratio_of, ratio_to_best

ADAPTIVE_TO_BEST, ADAPTIVE_TO_PLAIN = 0.95, 0.97  # goals, everywhere
_ADAPTIVE, _PLAIN = "adaptive", "k=0"

Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class Claim:
    """`value` should be at least or at most `goal`; `interval`: 95%, where turns give one."""

    text: str
    value: float
    relation: Literal["at least", "at most"]
    goal: float
    interval: tuple[float, float] | None = None

    @property
    def is_met(self) -> bool:
        """True if this run shows it."""
        return self.value >= self.goal if self.relation == "at least" else self.value <= self.goal

    def __str__(self) -> str:
        verdict = "met" if self.is_met else "MISSED"
        low_high = "" if self.interval is None else " [{:.2f}, {:.2f}]".format(*self.interval)
        return f"{self.text}: {self.value:.2f}{low_high} ({self.relation} {self.goal:g}: {verdict})"

    def record(self) -> dict[str, object]:
        """Return the claim as a dict for the JSON file."""
        return {
            "text": self.text,
            "value": self.value,
            "relation": self.relation,
            "goal": self.goal,
            "is_met": self.is_met,
            **({} if self.interval is None else {"interval": list(self.interval)}),
        }


def claims_of(content: Mapping[str, Any]) -> list[Claim]:
    """Return the claims that a pair's part of the record has numbers for."""
    lines: Lines = content["lines"]
    claims = []
    for where, goal in (("engine", 1.4), ("http", 1.25)):
        ours = best(lines, where, r"k=[1-9]\d*")
        theirs = best(lines, where, r"assisted .*")
        if ours is not None and theirs is not None:
            text = f"{where}, batch 1: ours {ours['way']} / transformers {theirs['way']}"
            claims.append(Claim(text, _ratio(ours, theirs), "at least", goal))
    one, eight = (_line(lines, "engine", "k=0", batch) for batch in (1, 8))
    if one is not None and eight is not None:
        claims.append(Claim("engine, k=0: batch 8 / batch 1", _ratio(eight, one), "at least", 5.0))
    bare, link = (_line(lines, "link", way, 1) for way in ("bare engine", "k=0"))
    if bare is not None and link is not None:
        text = "batch 1, k=0: time through the link / of the bare engine"
        claims.append(Claim(text, _ratio(bare, link), "at most", 1.03))
    return claims + adaptive_claims(lines) + _gap_claims(content) + _pass_claims(content)


def adaptive_claims(lines: Lines) -> list[Claim]:
    """Claim that adaptive k is never wrong.

    It is compared with the best fixed k, 0 included, and with plain decoding. There is a claim for
    every place and batch whose lines have at least two turns.
    """
    claims = []
    for where, batch in dict.fromkeys((line["where"], line["batch"]) for line in lines):
        adaptive = _line(lines, where, _ADAPTIVE, batch)
        fixed = {
            line["way"]: line["runs"]
            for line in lines
            if (line["where"], line["batch"]) == (where, batch) and line["way"].startswith("k=")
        }
        if adaptive is None or _PLAIN not in fixed or len(adaptive["runs"]) < 2:
            continue
        to_best = ratio_to_best(adaptive["runs"], fixed).ratio
        to_plain = ratio_of(adaptive["runs"], fixed[_PLAIN])
        of = f"{where}, batch {batch}: adaptive"
        claims.append(at_least(f"{of} / best fixed k", to_best, ADAPTIVE_TO_BEST))
        claims.append(at_least(f"{of} / {_PLAIN}", to_plain, ADAPTIVE_TO_PLAIN))
    return claims


def at_least(text: str, estimate: Estimate, goal: float) -> Claim:
    """Claim that a figure with an interval is at least `goal`; the figure itself decides."""
    interval = (estimate.low, estimate.high)
    return Claim(text, estimate.value, "at least", goal, interval=interval)


def best(lines: Lines, where: str, way: str, batch: int = 1) -> Mapping[str, Any] | None:
    """Return the fastest line whose way matches the pattern; None if there is none."""
    found = [
        line
        for line in lines
        if line["where"] == where and line["batch"] == batch and re.fullmatch(way, line["way"])
    ]
    return max(found, key=lambda line: float(line["tokens_per_s"]), default=None)


def best_k(lines: Lines) -> int:
    """Return our best fixed k above 0 in the engine loop at batch 1."""
    line = best(lines, "engine", r"k=[1-9]\d*")
    assert line is not None, "the engine lines come first"
    return int(str(line["way"]).removeprefix("k="))


def best_assisted_k(lines: Lines) -> int | None:
    """Return the best k of assisted generation at batch 1; None if its heuristic is better."""
    line = best(lines, "engine", r"assisted .*")
    assert line is not None, "the engine lines come first"
    name = str(line["way"]).removeprefix("assisted ")
    return None if name == "heuristic" else int(name.removeprefix("k="))


def _gap_claims(content: Mapping[str, Any]) -> list[Claim]:
    slowdowns: dict[tuple[str, int], list[float]] = {}
    for run in content.get("gaps", []):
        key = (run["way"], run["num_prompt_tokens"])
        slowdowns.setdefault(key, []).append(run["slowdown"])
    return [
        Claim(
            f"{way}: a stream's gap beside a prompt of {num_tokens} tokens / without it",
            statistics.median(values),
            "at most",
            2.0,
        )
        for (way, num_tokens), values in slowdowns.items()
    ]


def _pass_claims(content: Mapping[str, Any]) -> list[Claim]:
    passes = content.get("target", {}).get("passes", [])
    six = next((line for line in passes if line["name"] == "1x6"), None)
    if six is None:
        return []
    return [
        Claim("pass of 6 rows / its products", six["ratio"], "at most", 1.5),
        Claim("pass of 6 rows / of 1 row", six["to_one_row"], "at most", 1.25),
    ]


def _line(lines: Lines, where: str, way: str, batch: int) -> Mapping[str, Any] | None:
    return best(lines, where, re.escape(way), batch)


def _ratio(above: Mapping[str, Any], below: Mapping[str, Any]) -> float:
    return median_ratio(above["runs"], below["runs"])
