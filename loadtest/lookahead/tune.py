"""Picks a_t, r_t, d and what is committed for a task, from a few validation prompts.

The rule takes all settings whose hard satisfaction is within an allowance of CDLH's. CDLH has the
commit that suits it best. It chooses the one with the lowest cost; without any, the one that
satisfies most. The choice is shown beside CDLH with the same commit. Cost is target passes and
draft steps a token. A step costs the share of a pass that the draft's weights are of the target's.
Settings are halved by that rule over more and more prompts, so most are dropped early. (Jamieson
and Talwalkar, arXiv 1502.07943.) Counts are exact, so the same prompts pick the same settings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any

from loadtest.lookahead.compare import counts_of, ratio_to
from loadtest.lookahead.runs import Bench, Text
from loadtest.lookahead.tasks import Prompts, Task
from loadtest.lookahead.terms import CDLH, Terms
from loadtest.report.ratios import mean_difference

_FIRST_PROMPTS = 8  # prompts of the first round
_LAST_SETTINGS = 3  # these are compared on all prompts


@dataclass(frozen=True, kw_only=True)
class Grid:
    """The values to try."""

    lengths: Sequence[int]
    accept_thresholds: Sequence[float]
    reward_thresholds: Sequence[float]
    commits: Sequence[str]

    def of(self, terms: Terms) -> list[Terms]:
        """Return all combinations; other terms stay."""
        axes = product(self.lengths, self.accept_thresholds, self.reward_thresholds, self.commits)
        return [
            replace(terms, length=length, accept_threshold=a_t, reward_threshold=r_t, commit=commit)
            for length, a_t, r_t, commit in axes
        ]


@dataclass(frozen=True, kw_only=True)
class Options:
    """The number of prompts of validation and of the check, and the allowance below CDLH."""

    num_prompts: int
    held_out: int
    within: float
    at_once: int


@dataclass
class Candidate:
    """One setting and its texts so far."""

    terms: Terms
    texts: list[Text]

    def hard(self) -> float:
        """Share of the texts that met their constraint."""
        return sum(text.hard for text in self.texts) / len(self.texts)

    def cost(self, step_cost: float) -> float:
        """Passes a token, draft steps at their share."""
        num_tokens = sum(len(text.token_ids) for text in self.texts)
        return (
            sum(text.num_passes + step_cost * text.num_draft_steps for text in self.texts)
            / num_tokens
        )

    def rank(self, wanted: float, step_cost: float) -> tuple[float, float]:
        """Lower is better: what it lacks of the wanted satisfaction, then its cost."""
        return (round(max(0.0, wanted - self.hard()), 9), self.cost(step_cost))


def tune(
    bench: Bench,
    task: Task,
    terms: Terms,
    grid: Grid,
    options: Options,
) -> dict[str, Any]:
    """Pick, and check what was picked on held-out prompts.

    Args:
        bench: the pair.
        task: whose texts are wanted.
        terms: what the grid leaves alone; also of CDLH.
        grid: what is tried.
        options: how much of what.
    """
    num_prompts, at_once = options.num_prompts, options.at_once
    prompts, step_cost = task.draw("validation", num_prompts, at_once), bench.pair.step_cost
    baselines = {
        commit: Candidate(replace(terms, commit=commit).ways()[CDLH], []) for commit in grid.commits
    }
    candidates = [Candidate(one, []) for one in grid.of(terms)]
    rounds = []
    for num_asks in _rungs(num_prompts, len(candidates)):
        for one in (*baselines.values(), *candidates):
            new = prompts.part(len(one.texts), num_asks)
            one.texts += bench.answer(new, one.terms).texts
        wanted = max(one.hard() for one in baselines.values()) - options.within
        candidates.sort(key=lambda one: one.rank(wanted, step_cost))
        rounds.append({"prompts": num_asks, "settings": len(candidates), "wanted": wanted})
        if num_asks < num_prompts:
            candidates = candidates[: max(_LAST_SETTINGS, len(candidates) // 2)]
    best = candidates[0]
    baseline = baselines[best.terms.commit]
    asked = best.terms.lookahead({}) or {}
    return {
        "lookahead": {name: value for name, value in asked.items() if name != "reward"},
        "expected": {
            "hard": best.hard(),
            "hard_of_cdlh": baseline.hard(),
            "cost": best.cost(step_cost),
            "cost_of_cdlh": baseline.cost(step_cost),
        },
        "held_out": _checked(
            bench, task.draw("held-out", options.held_out, at_once), best.terms, baseline.terms
        ),
        "rounds": rounds,
        "last": [
            {"terms": asdict(one.terms), "hard": one.hard(), "cost": one.cost(step_cost)}
            for one in candidates
        ],
    }


def _checked(bench: Bench, prompts: Prompts, terms: Terms, cdlh: Terms) -> dict[str, Any]:
    """Compare what was picked with CDLH, on prompts that picked nothing."""
    own, like = (bench.answer(prompts, way) for way in (terms, cdlh))
    own_counts, like_counts = counts_of(own), counts_of(like)
    step_cost = bench.pair.step_cost
    return {
        "cdsl": own_counts,
        "cdlh": like_counts,
        "hard_less_cdlh": asdict(mean_difference(own_counts["met"], like_counts["met"])),
        "cost": Candidate(terms, list(own.texts)).cost(step_cost),
        "cost_of_cdlh": Candidate(cdlh, list(like.texts)).cost(step_cost),
        "passes_to_cdlh": asdict(ratio_to(like_counts, own_counts)),
    }


def _rungs(num_prompts: int, num_settings: int) -> list[int]:
    """Prompts that settings have seen after each round: twice as many, up to all."""
    rungs, num_left, num_seen = [], num_settings, min(_FIRST_PROMPTS, num_prompts)
    while num_left > _LAST_SETTINGS and num_seen < num_prompts:
        rungs.append(num_seen)
        num_left = max(_LAST_SETTINGS, num_left // 2)
        num_seen = min(2 * num_seen, num_prompts)
    return [*rungs, num_prompts]
