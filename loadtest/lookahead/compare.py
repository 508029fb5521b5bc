"""Greedy, CDLH and CDSL on the same held-out prompts, like beside like.

CDSL is set in three ways, and each has a CDLH of its own beside it that commits as much:

- `paper`: the paper's acceptance and commit, a token, with thresholds of its kind;
- `gain`: this project's acceptance and commit, with the same thresholds;
- `as recommended`: a request that says nothing else than its reward.

Satisfaction and quality are of all prompts, several at once. Speed is of the first few, one at a
time, by turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any

from loadtest.frame.claims import Claim, at_least
from loadtest.lookahead.runs import Bench, Run, distinct
from loadtest.lookahead.tasks import Prompts
from loadtest.lookahead.terms import CDLH, CDSL, GAIN, GREEDY, PAPER, RECOMMENDED, Terms, Thresholds
from loadtest.report.interleaved import interleave
from loadtest.report.ratios import Estimate, mean_difference, ratio_of, ratio_of_totals, wilson
from loadtest.report.readme.lookahead import SPEED

_SPEED_UP, _GAIN, _LOSS = 2.2, 0.10, 0.03  # goals: CDSL over CDLH, over greedy, below CDLH
_CHEAP = "cdlh, whole roll-outs"  # the paper's cheaper baseline; no claim is about it

Line = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """The number of prompts whose speed is measured (0: none), and the turns of each way."""

    speed_prompts: int
    repeats: int


def tables_of(terms: Terms, paper: Thresholds, gain: Thresholds) -> dict[str, Terms]:
    """CDSL in each of the three ways; `terms` are of the first two."""
    return {
        PAPER: terms.by_rule(PAPER, paper),
        GAIN: terms.by_rule(GAIN, gain),
        RECOMMENDED: Terms(),
    }


def counts_of(run: Run) -> dict[str, Any]:
    """Return the costs and the satisfaction of a run, also by prompt; no timing is in them."""
    num_met = sum(text.hard for text in run.texts)
    return {
        "prompts": len(run.texts),
        "tokens": run.num_tokens,
        "hard": asdict(wilson(num_met, len(run.texts))),
        "soft": run.share("soft"),
        "passes_per_token": run.per_token("num_passes"),
        "steps_per_token": run.per_token("num_steps"),
        "draft_steps_per_token": run.per_token("num_draft_steps"),
        "verified_per_token": run.per_token("num_verified"),
        "reward_calls_per_token": run.per_token("num_reward_calls"),
        "states": run.states,
        "met": [int(text.hard) for text in run.texts],
        "tokens_of_each": [len(text.token_ids) for text in run.texts],
        "passes_of_each": [text.num_passes for text in run.texts],
        "steps_of_each": [text.num_steps for text in run.texts],
    }


def quality_of(bench: Bench, run: Run) -> dict[str, float]:
    """Return the target's mean log-probability per token, and the share of distinct text."""
    texts = [text.text for text in run.texts]
    return {
        "logprob": statistics.mean(bench.logprobs(run.texts)),
        "distinct_1": distinct(texts, 1),
        "distinct_2": distinct(texts, 2),
    }


def compare(
    bench: Bench, prompts: Prompts, tables: Mapping[str, Terms], sizes: Sizes
) -> dict[str, Any]:
    """Lines of all ways, and the claims about them.

    Args:
        bench: the pair.
        prompts: held-out ones.
        tables: CDSL by the name of the table; CDLH with the same commit is beside each.
        sizes: of what is timed.
    """
    rows = _rows(tables)
    found: dict[Terms, dict[str, Any]] = {}  # equal ways of two tables run once
    for way in dict.fromkeys(terms for _, _, terms in rows):
        run = bench.answer(prompts, way)
        found[way] = counts_of(run) | quality_of(bench, run)
    if sizes.speed_prompts:
        for way, rates in _rates(bench, prompts, list(found), sizes).items():
            found[way] |= {"runs": rates, "tokens_per_s": statistics.median(rates)}
    lines = [
        {"table": table, "way": name, "terms": asdict(terms)} | found[terms]
        for table, name, terms in rows
    ]
    claims = [claim for table in tables for claim in claims_of(table, lines)]
    return {"lines": lines, "claims": [claim.record() for claim in claims]}


def claims_of(table: str, lines: Sequence[Line]) -> list[Claim]:
    """Satisfaction of CDSL beside CDLH's and greedy's, and its speed over CDLH's, of one table."""
    by_way = {line["way"]: line for line in lines if line["table"] in ("", table)}
    cdsl, cdlh, greedy = by_way[CDSL], by_way[CDLH], by_way[GREEDY]
    less, more = (mean_difference(cdsl["met"], other["met"]) for other in (cdlh, greedy))
    claims = [
        at_least(f"{table}: hard satisfaction, cdsl - cdlh", less, -_LOSS),
        at_least(f"{table}: hard satisfaction, cdsl - greedy", more, _GAIN),
    ]
    for count in ("passes", "steps"):
        text = f"{table}: target {count} a token, cdlh / cdsl"
        claims.append(at_least(text, ratio_to(cdlh, cdsl, count), _SPEED_UP))
    if "runs" in cdsl:
        claims.append(
            at_least(f"{table}: {SPEED}", ratio_of(cdsl["runs"], cdlh["runs"]), _SPEED_UP)
        )
    return claims


def ratio_to(above: Line, below: Line, count: str = "passes") -> Estimate:
    """Return the ratio of a line's cost per token to another line's on the same prompts."""
    costs, others = (
        list(zip(line[f"{count}_of_each"], line["tokens_of_each"], strict=True))
        for line in (above, below)
    )
    return ratio_of_totals(costs, others)


def _rows(tables: Mapping[str, Terms]) -> list[tuple[str, str, Terms]]:
    """Table, name and terms of every way; of no table are those that each is compared with."""
    cdlh = next(iter(tables.values())).ways()[CDLH]
    rows = [
        ("", GREEDY, Terms(method="off")),
        ("", _CHEAP, replace(cdlh, commit="rollout")),
    ]
    for table, terms in tables.items():
        ways = terms.ways()
        rows += [(table, name, ways[name]) for name in (CDLH, CDSL)]
    return rows


def _rates(
    bench: Bench, prompts: Prompts, ways: Sequence[Terms], sizes: Sizes
) -> dict[Terms, list[float]]:
    """Tokens per second of each turn."""
    timed = prompts.part(0, sizes.speed_prompts).several(1)
    for way in ways:  # the first answer takes longer
        bench.answer(timed.part(0, 1), way)
    by_place = {str(place): partial(bench.answer, timed, way) for place, way in enumerate(ways)}
    runs = interleave(by_place, sizes.repeats)
    return {way: [run.tokens_per_s for run in runs[str(place)]] for place, way in enumerate(ways)}
