"""One setting at a time: thresholds, or the rule of verification; by counts alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from itertools import product
from typing import Any

from loadtest.lookahead.compare import counts_of, ratio_to
from loadtest.lookahead.runs import Bench
from loadtest.lookahead.tasks import Prompts
from loadtest.lookahead.terms import CDLH, GAIN, GREEDY, PAPER, Terms
from loadtest.report.ratios import mean_difference

_RULES = ("hard", "speculative_sampling")


def thresholds(
    bench: Bench,
    prompts: Prompts,
    terms: Terms,
    *,
    accept: Sequence[float],
    reward: Sequence[float],
) -> dict[str, Any]:
    """Run every a_t with every r_t by either rule of acceptance, with CDLH of its commit beside it.

    `is_best`: on the frontier of its rule.
    """
    rules = {}
    for acceptance in (PAPER, GAIN):
        own = terms.by_rule(acceptance)
        grid = [
            replace(own, accept_threshold=a_t, reward_threshold=r_t)
            for a_t, r_t in product(accept, reward)
        ]
        lines = [_line(bench, prompts, way) for way in (own.ways()[CDLH], *grid)]
        mark_frontier(lines[1:])
        rules[acceptance] = {"cdlh": lines[0], "lines": lines[1:]}
    return {"greedy": _line(bench, prompts, terms.ways()[GREEDY]), "rules": rules}


def _line(bench: Bench, prompts: Prompts, way: Terms) -> dict[str, Any]:
    return {"terms": asdict(way)} | counts_of(bench.answer(prompts, way))


def mark_frontier(lines: Sequence[dict[str, Any]]) -> None:
    """Mark those that no other line beats in both satisfaction and passes."""
    for line in lines:
        line["is_best"] = not any(
            other["hard"]["value"] >= line["hard"]["value"]
            and other["passes_per_token"] <= line["passes_per_token"]
            and (other["hard"]["value"], other["passes_per_token"])
            != (line["hard"]["value"], line["passes_per_token"])
            for other in lines
        )


def verification(bench: Bench, prompts: Prompts, terms: Terms) -> dict[str, Any]:
    """Hard rejection and speculative sampling at one temperature above 0, a draw of each prompt."""
    lines = []
    for rule in _RULES:
        run = bench.answer(prompts, replace(terms, verification=rule))
        lines.append({"rule": rule} | counts_of(run))
    hard, sampled = lines
    less = mean_difference(sampled["met"], hard["met"])
    ratio = ratio_to(hard, sampled)
    return {
        "lines": lines,
        "sampling_less_hard": asdict(less),
        "passes_hard_to_sampling": asdict(ratio),
    }
