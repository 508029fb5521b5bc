"""What a joint plan costs, and that looking less gives the plans of looking everywhere."""

from __future__ import annotations

import random
import time
from dataclasses import dataclass

import pytest

from router.drafters.draft_model import DRAFT_MODEL
from router.planning.costs import PassCosts
from router.planning.joint import Costs, DraftForecast, JointPlan, Others, best_drafting_plan
from tests.router.replies import proposal

OVERHEAD_MS = 1.5


@dataclass(frozen=True)
class SlowRounds:
    """Every depth with every number of rows, each from scratch: slow, and easy to believe."""

    forecasts: list[DraftForecast]
    costs: Costs
    others: Others

    def best(self) -> JointPlan | None:
        max_depth = max((len(o.survival) for o in self.forecasts if not o.is_free), default=0)
        depths = range(1, max_depth + 1) if max_depth else [0]
        found = [plan for depth in depths if (plan := self._best_at(depth))]
        return max(found, key=lambda plan: plan.tokens_per_ms, default=None)

    def _best_at(self, depth: int) -> JointPlan | None:
        lengths = [min(1, len(outlook.survival)) for outlook in self.forecasts]
        if not any(lengths):
            return None
        tokens = sorted(
            (-alive, length, index)
            for index, outlook in enumerate(self.forecasts)
            for length, alive in enumerate(outlook.survival, start=1)
            if length > 1 and (length <= depth or outlook.is_free)
        )
        best = self._plan(lengths, depth)
        for _, length, index in tokens:
            lengths[index] = length
            plan = self._plan(lengths, depth)
            if plan.tokens_per_ms > best.tokens_per_ms:
                best = plan
        return self._plan(list(best.lengths), best.depth)

    def _plan(self, lengths: list[int], depth: int) -> JointPlan:
        """A round with these k; its time is that of `depth` steps, its depth the steps needed."""
        costs, others, num_sessions = self.costs, self.others, len(self.forecasts)
        pairs = list(zip(lengths, self.forecasts, strict=True))
        expected = num_sessions + sum(sum(each.survival[:k]) for k, each in pairs)
        away = [k for k, each in pairs if k > 0 and not each.is_free]
        plain_ms = costs.pass_ms(num_sessions + others.num_rows)
        rows_ms = costs.pass_ms(num_sessions + others.num_rows + sum(lengths))
        lost = others.num_sessions * (rows_ms - plain_ms) / max(plain_ms, 1e-9)
        num_away = max(1.0, len(away) + others.num_drafting)
        steps_ms = costs.draft_ms(depth, num_away) if away else 0.0
        engine_ms = rows_ms + steps_ms
        if len(away) > 1:
            half_rows = (num_sessions + sum(lengths)) / 2 + others.num_rows
            half_ms = costs.pass_ms(half_rows)
            num_half = max(1.0, len(away) / 2 + others.num_drafting)
            apart_ms = max(2 * half_ms, half_ms + costs.draft_ms(depth, num_half))
            share = min(1.0, max(0.0, 2.0 - 2.0 * others.our_share))
            engine_ms -= share * max(0.0, engine_ms - apart_ms)
        deepest = max(away, default=0)
        rate = (expected - lost) / max(engine_ms + OVERHEAD_MS, 1e-9)
        return JointPlan(tuple(lengths), deepest, engine_ms, OVERHEAD_MS, rate, expected)


def measured_costs(rng: random.Random, num_rows: int) -> Costs:
    """Measured passes and steps, with hiccups."""
    costs = PassCosts()
    row_ms = rng.choice([0.0, 0.01, 0.2, 2.0])
    counts = [1, 2, 4, 8, *range(16, num_rows, max(16, num_rows // 16))]
    for rows in counts:
        for _ in range(3):
            costs.observe_pass(rows, (20.0 + row_ms * rows) * rng.uniform(0.7, 1.5))
    for num_sessions in (1, 4, 16, 64):
        step_ms = rng.uniform(0.5, 2.0) + 0.01 * num_sessions
        draft = proposal(1, step_ms, num_sessions=num_sessions)
        costs.observe_draft(DRAFT_MODEL.traits, draft)
    return costs.of_round([DRAFT_MODEL.name])


def some_forecasts(rng: random.Random, num_sessions: int, max_k: int) -> list[DraftForecast]:
    found = []
    for _ in range(num_sessions):
        acceptance = rng.uniform(0.2, 0.995)
        limit = rng.randrange(max_k + 1) if rng.random() < 0.3 else max_k
        survival = [acceptance**j for j in range(1, limit + 1)]
        found.append(DraftForecast(survival, is_free=rng.random() < 0.2))
    return found


def some_others(rng: random.Random) -> Others:
    return Others(
        num_sessions=rng.choice([0.0, 5.5]),
        num_rows=rng.choice([0.0, 11.5]),
        num_drafting=rng.choice([-0.5, 0.0, 3.0]),
        our_share=rng.choice([1.0, 1.0, 0.7, 0.5]),
    )


def test_up_to_k_8_every_plan_is_that_of_looking_everywhere() -> None:
    for seed in range(250):
        rng = random.Random(seed)
        num_sessions = rng.choice([1, 2, 3, 5, 8, 13] if seed % 25 else [40])
        forecasts = some_forecasts(rng, num_sessions, rng.choice([1, 2, 4, 8, 8]))
        costs, others = measured_costs(rng, 9 * num_sessions), some_others(rng)
        plan, reference = (
            best_drafting_plan(forecasts, costs, others, OVERHEAD_MS),
            SlowRounds(forecasts, costs, others).best(),
        )
        if reference is None:
            assert plan is None, seed
            continue
        assert plan is not None, seed
        assert (plan.lengths, plan.depth) == (reference.lengths, reference.depth), seed
        assert plan.round_ms == pytest.approx(reference.round_ms), seed
        assert plan.tokens_per_ms == pytest.approx(reference.tokens_per_ms), seed


@pytest.mark.parametrize(("num_sessions", "max_k"), [(3, 64), (9, 64), (24, 40)])
def test_longer_drafts_come_near_the_best_there_is(num_sessions: int, max_k: int) -> None:
    for seed in range(4):
        rng = random.Random(seed)
        forecasts = some_forecasts(rng, num_sessions, max_k)
        costs = measured_costs(rng, num_sessions * max_k)
        others = some_others(rng)
        plan = best_drafting_plan(forecasts, costs, others, OVERHEAD_MS)
        reference = SlowRounds(forecasts, costs, others).best()
        assert plan is not None
        assert reference is not None
        assert plan.tokens_per_ms >= 0.98 * reference.tokens_per_ms, seed
        assert plan.tokens_per_ms <= reference.tokens_per_ms * (1 + 1e-9), seed


def test_a_plan_for_many_sessions_with_long_drafts_looks_at_little() -> None:
    """Eight times the length takes some six times as long; looking everywhere, some fifty."""

    def planning_s(num_sessions: int, max_k: int) -> float:
        rng = random.Random(1)
        costs = measured_costs(rng, num_sessions * max_k)
        forecasts = [
            DraftForecast([0.95**j for j in range(1, max_k + 1)]) for _ in range(num_sessions)
        ]
        times = []
        for _ in range(5):
            began_s = time.process_time()
            best_drafting_plan(forecasts, costs, Others(), OVERHEAD_MS)
            times.append(time.process_time() - began_s)
        return min(times)

    assert planning_s(96, 64) < 20 * planning_s(96, 8)
