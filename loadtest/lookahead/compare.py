"""Greedy, CDLH, its cheaper form and CDSL on the same held-out prompts.

Satisfaction and quality are of all prompts, several at once; speed is of the first few, one at a
time, by turns.
"""

from __future__ import annotations

import statistics
from collections.abc import Mapping
from dataclasses import asdict
from functools import partial
from typing import Any

from loadtest.bench.claims import Claim, at_least
from loadtest.lookahead.runs import Bench, Run, distinct
from loadtest.lookahead.tasks import Prompts
from loadtest.lookahead.terms import CDLH, CDSL, GREEDY, Terms
from loadtest.report.interleaved import interleave
from loadtest.report.ratios import mean_difference, ratio_of, wilson
from loadtest.report.readme.lookahead import SPEED

_SPEED_UP, _GAIN, _LOSS = 2.2, 0.10, 0.03  # goals: CDSL over CDLH, over greedy, below CDLH

Line = Mapping[str, Any]


def counts_of(run: Run) -> dict[str, Any]:
    """What a run cost and satisfied; the same whenever it is run."""
    num_met = sum(text.hard for text in run.texts)
    return {
        "prompts": len(run.texts),
        "tokens": run.num_tokens,
        "hard": asdict(wilson(num_met, len(run.texts))),
        "soft": run.share("soft"),
        "met": [int(text.hard) for text in run.texts],
        "passes_per_token": run.per_token("num_passes"),
        "steps_per_token": run.per_token("num_steps"),
        "draft_steps_per_token": run.per_token("num_draft_steps"),
        "verified_per_token": run.per_token("num_verified"),
        "reward_calls_per_token": run.per_token("num_reward_calls"),
        "states": run.states,
    }


def quality_of(bench: Bench, run: Run) -> dict[str, float]:
    """The target's own mean log-probability per token, and how much of the text is distinct."""
    texts = [text.text for text in run.texts]
    return {
        "logprob": statistics.mean(bench.logprobs(run.texts)),
        "distinct_1": distinct(texts, 1),
        "distinct_2": distinct(texts, 2),
    }


def compare(
    bench: Bench,
    prompts: Prompts,
    terms: Terms,
    *,
    speed_prompts: int,
    repeats: int,
) -> dict[str, Any]:
    """Lines of all ways, and the claims about them.

    Args:
        bench: the pair.
        prompts: held-out ones.
        terms: of CDSL; the other ways have the same lengths and weights.
        speed_prompts: of the first prompts, whose speed is measured; 0: of none.
        repeats: turns of each way.
    """
    ways = terms.ways()
    lines = []
    for name, way in ways.items():
        run = bench.answer(prompts, way)
        lines.append({"way": name} | counts_of(run) | quality_of(bench, run))
    if speed_prompts:
        timed = prompts.part(0, speed_prompts).several(1)
        for way in ways.values():  # what is first met takes longer
            bench.answer(timed.part(0, 1), way)
        runs = interleave(
            {name: partial(bench.answer, timed, way) for name, way in ways.items()},
            repeats,
        )
        for line in lines:
            rates = [run.tokens_per_s for run in runs[line["way"]]]
            line |= {"runs": rates, "tokens_per_s": statistics.median(rates)}
    claims = claims_of({line["way"]: line for line in lines})
    return {"lines": lines, "claims": [claim.record() for claim in claims]}


def claims_of(lines: Mapping[str, Line]) -> list[Claim]:
    """Satisfaction of CDSL beside CDLH's and greedy's, and its speed over CDLH's."""
    cdsl, cdlh, greedy = lines[CDSL], lines[CDLH], lines[GREEDY]
    claims = [
        at_least(
            "hard satisfaction, cdsl - cdlh", mean_difference(cdsl["met"], cdlh["met"]), -_LOSS
        ),
        at_least(
            "hard satisfaction, cdsl - greedy", mean_difference(cdsl["met"], greedy["met"]), _GAIN
        ),
    ]
    for count in ("passes", "steps"):
        name = f"{count}_per_token"
        ratio = cdlh[name] / cdsl[name]
        claims.append(Claim(f"target {count} a token, cdlh / cdsl", ratio, "at least", _SPEED_UP))
    if "runs" in cdsl:
        speed = ratio_of(cdsl["runs"], cdlh["runs"])
        claims.append(at_least(SPEED, speed, _SPEED_UP))
    return claims
