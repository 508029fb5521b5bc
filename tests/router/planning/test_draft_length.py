from __future__ import annotations

import pytest

from router.drafters.draft_model import DRAFT_MODEL
from router.drafters.misses import Misses
from router.drafters.ngram import NGRAM
from router.planning.acceptance import AcceptanceEstimate, AcceptancePool
from router.planning.adaptive import PlannedSession, RouterPlanner
from router.planning.costs import PassCosts
from router.planning.fixed import FixedPlanner
from router.planning.joint import JointPlan
from router.planning.round_plan import Mode, RoundPlan
from router.ports import DrafterTraits, TaskClass
from tests.router.replies import proposal

MODEL, LOOKUP = DRAFT_MODEL.traits, NGRAM.traits


@pytest.mark.parametrize(
    ("drafter", "allowed", "is_ready", "plan"),
    [
        (MODEL, 8, True, (3, 0)),
        (MODEL, 2, True, (2, 0)),
        (MODEL, 0, True, (0, 1)),
        (MODEL, 8, False, (0, 1)),
        (None, 0, True, (0, 32)),
    ],
    ids=["full", "clipped", "no draft", "not waited for", "the target goes on alone"],
)
def test_fixed_length(
    drafter: DrafterTraits | None, allowed: int, is_ready: bool, plan: tuple[int, int]
) -> None:
    found = FixedPlanner(3, 32).plan(drafter, allowed, is_ready=is_ready)
    assert (found.num_draft_tokens, found.run_on) == plan


def test_misses_in_a_row_let_the_target_go_on_ever_further() -> None:
    misses, missed = Misses(), RoundPlan(3, 0)
    assert [misses.next_plan(missed).run_on for _ in range(6)] == [1, 1, 2, 2, 3, 3]
    assert max(misses.next_plan(missed).run_on for _ in range(50)) == 8
    misses.end()
    assert misses.next_plan(missed).run_on == 1


def test_a_target_that_drafts_itself_goes_on_for_longer_after_a_miss() -> None:
    misses, missed = Misses(), RoundPlan(3, 0)
    assert [misses.next_plan(missed, 0.5).run_on for _ in range(6)] == [2, 4, 8, 16, 32, 32]
    misses.end()
    assert [misses.next_plan(missed, 0.1).run_on for _ in range(3)] == [1, 1, 2]


def test_a_missed_round_is_held_against_what_was_promised() -> None:
    promise = JointPlan((3,), 3, engine_ms=20.0, overhead_ms=4.0, tokens_per_ms=0.1, num_tokens=3.0)
    plan = Misses().next_plan(RoundPlan(3, 0, mode=Mode.DRAFTING, promise=promise))
    assert (plan.mode, plan.promise, plan.is_typical) == (Mode.DRAFTING, promise, True)


def planned(task_class: TaskClass) -> PlannedSession:
    estimate = AcceptanceEstimate(AcceptancePool(MODEL.prior_acceptance[task_class]))
    planner = RouterPlanner(PassCosts())
    return PlannedSession(
        planner, {MODEL.name: estimate}, lambda: "target", max_length=8, run_on=32
    )


@pytest.mark.parametrize("limit", [0, 1, 3])
def test_limits_are_kept(limit: int) -> None:
    assert planned("free").plan(MODEL, limit).num_draft_tokens <= limit


def test_without_measurements_it_drafts_while_a_token_is_likely_to_stand() -> None:
    assert planned("structured").plan(MODEL, 8).num_draft_tokens >= 3


def test_prompt_lookup_needs_no_measured_step_and_changes_none() -> None:
    costs = PassCosts()
    costs.observe_pass(1, 20.0)
    costs.observe_draft(LOOKUP, proposal(2, 2.0))
    assert costs.is_known(LOOKUP)
    assert not costs.is_known(MODEL)
    assert costs.step_ms(LOOKUP.name, 1) == costs.step_ms(MODEL.name, 1) == 0.0


def test_a_pass_is_news_once_however_many_sessions_report_it() -> None:
    costs = PassCosts()
    assert [costs.observe_pass(8, 20.25) for _ in range(3)] == [True, False, False]
    assert costs.observe_pass(8, 20.5)


def test_a_row_is_never_free_where_rows_cost_something() -> None:
    """A row takes 2 ms. A pass of 24 rows was quick, so the curve is flat from 16 rows to 24."""
    costs = PassCosts()
    for num_rows, pass_ms in ((1, 4.0), (8, 18.0), (16, 34.0), (24, 34.0)):
        costs.observe_pass(num_rows, pass_ms)
    assert costs.rows_price(8, 8, 8) == pytest.approx(8 * 16.0 / 18.0)
    assert costs.rows_price(8, 16, 16) == pytest.approx(16 * (8 * 30.0 / 23) / 34.0)
    assert costs.rows_price(0, 16, 16) == 0.0


def test_a_drafter_never_measured_drafts_though_an_older_plan_has_no_steps() -> None:
    """The plan is of copied text. By it the draft model's k would be 0 for ever."""
    estimates = {kind.name: AcceptanceEstimate(AcceptancePool(0.9)) for kind in (MODEL, LOOKUP)}
    costs, now_s = PassCosts(), [0.0]
    costs.observe_pass(1, 20.0)
    planner = RouterPlanner(costs, lambda: now_s[0])
    session = PlannedSession(planner, estimates, lambda: "target", max_length=8, run_on=32)
    assert session.plan(LOOKUP, 8).promise is not None
    now_s[0] = 60.0
    plan = session.plan(MODEL, 8)
    assert (plan.num_draft_tokens, plan.reason, plan.is_typical) == (6, "learning", False)
    costs.observe_draft(MODEL, proposal(2, 2.0, num_sessions=0))  # no step was taken for it
    assert session.plan(MODEL, 8).reason == "learning"
    costs.observe_draft(MODEL, proposal(2, 2.0))
    now_s[0] = 120.0
    assert session.plan(MODEL, 8).reason == "depth"


def test_a_draft_that_never_comes_in_time_counts_as_a_step_as_long() -> None:
    costs = PassCosts()
    costs.observe_pass(1, 20.0)
    costs.observe_late(MODEL, 500.0)
    assert (costs.is_known(MODEL), costs.step_ms(MODEL.name, 1)) == (True, 500.0)
    for _ in range(2):
        costs.observe_draft(MODEL, proposal(2, 2.0))
    costs.observe_late(MODEL, 1.0)  # lost, not late
    assert costs.step_ms(MODEL.name, 1) == 2.0
