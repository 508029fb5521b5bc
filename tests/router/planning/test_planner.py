"""The joint plan as a function of survival and costs: against brute force, and what moves it."""

from __future__ import annotations

import itertools
import math
import random
from dataclasses import dataclass

import pytest

from router.planning.joint import (
    DraftForecast,
    JointPlan,
    Others,
    best_drafting_plan,
    plain_plan,
)

ALONE = Others()


@dataclass(frozen=True)
class LinearCosts:
    base_ms: float = 20.0
    row_ms: float = 0.25
    first_step_ms: float = 2.0
    session_step_ms: float = 0.0
    drafting_overhead_ms: float = 2.0
    plain_overhead_ms: float = 0.0

    def pass_ms(self, num_rows: float) -> float:
        return self.base_ms + self.row_ms * num_rows

    def draft_ms(self, depth: float, num_sessions: float) -> float:
        return depth * (self.first_step_ms + self.session_step_ms * num_sessions)


def outlook(acceptance: float, limit: int = 8, *, is_free: bool = False) -> DraftForecast:
    return DraftForecast([acceptance**j for j in range(1, limit + 1)], is_free=is_free)


def expected(length: int, acceptance: float = 0.9) -> float:
    return sum(outlook(acceptance).survival[:length])


def choose(forecasts: list[DraftForecast], costs: LinearCosts, others: Others = ALONE) -> JointPlan:
    """The better of drafting and not, as `RouterPlanner` chooses but for its margins."""
    plain = plain_plan(len(forecasts), costs, others, costs.plain_overhead_ms)
    drafting = best_drafting_plan(forecasts, costs, others, costs.drafting_overhead_ms)
    if drafting is None or drafting.tokens_per_ms <= plain.tokens_per_ms:
        return plain
    return drafting


def rate_together(
    lengths: tuple[int, ...], forecasts: list[DraftForecast], costs: LinearCosts
) -> float:
    """Tokens per ms of a round in which every session drafts, one pass for all."""
    tokens = sum(1.0 + sum(o.survival[:k]) for o, k in zip(forecasts, lengths, strict=True))
    away = [k for o, k in zip(forecasts, lengths, strict=True) if not o.is_free]
    round_ms = costs.pass_ms(len(lengths) + sum(lengths))
    if away:
        round_ms += costs.draft_ms(max(away), len(away))
    round_ms += costs.drafting_overhead_ms
    return tokens / round_ms


def random_costs(random_: random.Random) -> LinearCosts:
    return LinearCosts(
        base_ms=random_.uniform(5.0, 50.0),
        row_ms=random_.uniform(0.05, 1.0),
        first_step_ms=random_.uniform(0.2, 4.0),
        session_step_ms=random_.uniform(0.0, 0.2),
    )


@pytest.mark.parametrize("seed", range(25))
def test_no_plan_of_all_combinations_is_better(seed: int) -> None:
    """Among plans in which every session drafts; greedy by survival loses at most 1%."""
    random_ = random.Random(seed)
    costs = random_costs(random_)
    num_free = random_.choice([0, 0, 1])
    forecasts = [
        outlook(random_.uniform(0.3, 0.95), 4, is_free=index < num_free) for index in range(4)
    ]
    plan = best_drafting_plan(forecasts, costs, ALONE, costs.drafting_overhead_ms)
    assert plan is not None
    best = max(
        rate_together(lengths, forecasts, costs)
        for lengths in itertools.product(range(1, 5), repeat=4)
    )
    assert plan.tokens_per_ms >= 0.99 * best
    if all(plan.lengths):
        assert plan.tokens_per_ms == pytest.approx(rate_together(plan.lengths, forecasts, costs))


def test_depth_is_paid_once_for_all() -> None:
    """A session that would draft less alone goes along, since the steps are taken anyway."""
    costs = LinearCosts(row_ms=0.05, first_step_ms=5.0)
    low = outlook(0.6)
    alone = choose([low], costs).lengths[0]
    together = choose([low, *[outlook(0.95)] * 7], costs).lengths[0]
    assert together > alone


def test_better_sessions_draft_longer() -> None:
    lengths = choose([outlook(0.9), outlook(0.7), outlook(0.5)], LinearCosts(row_ms=1.5)).lengths
    assert lengths[0] > lengths[1] >= lengths[2]


@pytest.mark.parametrize("num_sessions", [1, 4, 16])
def test_k_falls_when_rows_cost_more(num_sessions: int) -> None:
    forecasts = [outlook(0.8)] * num_sessions
    totals = [
        sum(choose(forecasts, LinearCosts(row_ms=row_ms)).lengths)
        for row_ms in (0.05, 0.25, 1.0, 3.0, 10.0, 100.0)
    ]
    assert totals == sorted(totals, reverse=True)
    assert totals[0] > totals[-1] == 0


@pytest.mark.parametrize("num_sessions", [1, 4, 16])
def test_k_rises_with_acceptance(num_sessions: int) -> None:
    totals = [
        sum(choose([outlook(acceptance)] * num_sessions, LinearCosts(row_ms=0.5)).lengths)
        for acceptance in (0.2, 0.4, 0.6, 0.8, 0.95)
    ]
    assert totals == sorted(totals)
    assert totals[-1] > totals[0]


def test_a_draft_that_is_too_slow_is_not_used() -> None:
    costs = LinearCosts(first_step_ms=25.0)
    assert choose([outlook(0.8)] * 4, costs).lengths == (0, 0, 0, 0)
    assert sum(choose([outlook(0.8)] * 4, LinearCosts(first_step_ms=2.0)).lengths) > 0


def test_the_usual_advice_follows_from_usual_costs() -> None:
    """Raise k above 70% acceptance, lower it or stop below 40%: nothing of it is written down."""
    costs = LinearCosts(base_ms=20.0, row_ms=0.25, first_step_ms=4.0)
    by_acceptance = {a: choose([outlook(a)], costs).lengths[0] for a in (0.3, 0.55, 0.8, 0.9)}
    assert by_acceptance[0.3] <= 1
    assert 1 <= by_acceptance[0.55] <= 4
    assert by_acceptance[0.9] > by_acceptance[0.8] > by_acceptance[0.55]


def test_lookup_drafts_cost_no_steps() -> None:
    costs = LinearCosts(first_step_ms=12.0)
    assert choose([outlook(0.5)] * 2, costs).lengths == (0, 0)
    plan = choose([outlook(0.5, is_free=True)] * 2, costs)
    assert min(plan.lengths) >= 2
    assert plan.depth == 0


def test_rows_that_delay_others_are_taken_off() -> None:
    costs = LinearCosts(row_ms=0.8)
    crowd = Others(num_sessions=60.0, num_rows=60.0)
    assert sum(choose([outlook(0.7)], costs).lengths) > sum(
        choose([outlook(0.7)], costs, crowd).lengths
    )


def test_queues_and_links_count() -> None:
    quick = LinearCosts(first_step_ms=2.0)
    slow = LinearCosts(first_step_ms=2.0, drafting_overhead_ms=60.0)
    assert sum(choose([outlook(0.6)], quick).lengths) > 0
    assert sum(choose([outlook(0.6)], slow).lengths) == 0


def test_what_plain_decoding_takes_beyond_passes_counts() -> None:
    plan = plain_plan(2, LinearCosts(), ALONE, overhead_ms=1.5)
    assert plan.tokens_per_ms == pytest.approx(2 / (20.5 + 1.5))
    assert plan.engine_ms == pytest.approx(20.5)
    assert plan.round_ms == pytest.approx(22.0)


@pytest.mark.parametrize("overhead_ms", [-1000.0, -20.5, 0.0])
def test_no_overhead_makes_a_round_take_nothing(overhead_ms: float) -> None:
    """One that was measured elsewhere may be more negative than a pass is long."""
    costs = LinearCosts()
    drafting = best_drafting_plan([outlook(0.9)], costs, ALONE, overhead_ms)
    for plan in (plain_plan(1, costs, ALONE, overhead_ms), drafting):
        assert plan is not None
        assert plan.round_ms >= 0.1 * plan.engine_ms > 0.0
        assert plan.tokens_per_ms > 0.0


def test_short_texts_are_drafted_for_less_deeply() -> None:
    """A text's first and last rounds bring little, and take the longer the deeper all draft."""
    costs = LinearCosts()
    depths, gains = [], []
    for text_tokens in (8.0, 64.0, math.inf):
        plan = best_drafting_plan([outlook(0.9)] * 4, costs, ALONE, 0.0, text_tokens)
        plain = plain_plan(4, costs, ALONE, 0.0)
        assert plan is not None
        assert plan.num_tokens == pytest.approx(4 + sum(map(expected, plan.lengths)))
        depths.append(plan.depth)
        gains.append(plan.tokens_per_ms / plain.tokens_per_ms)
    assert depths == sorted(depths)
    assert depths[0] < depths[-1]
    assert gains == sorted(gains)


def test_all_that_can_draft_stay_in_step() -> None:
    """One that drafts while the others go on alone parts the passes: no plan has that."""
    costs = LinearCosts(row_ms=2.0)
    plan = best_drafting_plan([outlook(0.05), outlook(0.9), DraftForecast(())], costs, ALONE, 2.0)
    assert plan is not None
    assert plan.lengths[0] == 1
    assert plan.lengths[1] > 1
    assert plan.lengths[2] == 0


def test_nothing_measured_gives_no_plan() -> None:
    unknown = LinearCosts(0.0, 0.0, 0.0, 0.0, 0.0, 0.0)
    assert best_drafting_plan([outlook(0.9)], unknown, ALONE, 0.0) is None


def test_the_example_of_the_docstring() -> None:
    costs = LinearCosts(row_ms=2.5, drafting_overhead_ms=0.0)
    forecasts = [DraftForecast([0.9, 0.8]), DraftForecast([0.5, 0.2])]
    plan = best_drafting_plan(forecasts, costs, ALONE, costs.drafting_overhead_ms)
    assert plan is not None
    assert (plan.lengths, plan.depth) == ((2, 1), 2)
    assert plan.tokens_per_ms == pytest.approx(4.2 / 36.5)
    assert rate_together((2, 1), forecasts, costs) == pytest.approx(0.115, abs=5e-4)
    assert rate_together((2, 2), forecasts, costs) == pytest.approx(0.113, abs=5e-4)
    assert rate_together((1, 1), forecasts, costs) == pytest.approx(0.106, abs=5e-4)
    assert plain_plan(2, costs, ALONE, 0.0).tokens_per_ms == pytest.approx(0.080)


def test_drafts_that_are_seldom_there_have_rows_as_seldom() -> None:
    """Four sessions copy in every second pass: a pass has two drafts, and a row costs as such."""
    steep = LinearCosts(base_ms=10.0, row_ms=2.0, drafting_overhead_ms=0.0)
    always, often = ([DraftForecast([0.9, 0.8, 0.7], True, share)] * 4 for share in (1.0, 0.5))
    full, half = (best_drafting_plan(each, steep, ALONE, 0.0) for each in (always, often))
    assert full is not None
    assert half is not None
    assert full.num_tokens == pytest.approx(4 + 4 * sum([0.9, 0.8, 0.7][: full.lengths[0]]))
    assert half.num_tokens == pytest.approx(4 + 2 * sum([0.9, 0.8, 0.7][: half.lengths[0]]))
    assert half.engine_ms == pytest.approx(10.0 + 2.0 * (4 + 2 * half.lengths[0]))
    plain = plain_plan(4, steep, ALONE, 0.0)
    assert plain.tokens_per_ms < half.tokens_per_ms < full.tokens_per_ms


def test_one_that_hardly_ever_has_a_draft_promises_hardly_more_than_plain_steps() -> None:
    costs = LinearCosts(drafting_overhead_ms=0.0, plain_overhead_ms=0.0)
    seldom = [DraftForecast([0.9, 0.8], is_free=True, presence=0.001)] * 3
    plan = best_drafting_plan(seldom, costs, ALONE, 0.0)
    assert plan is not None
    assert plan.tokens_per_ms == pytest.approx(plain_plan(3, costs, ALONE, 0.0).tokens_per_ms, 0.01)
