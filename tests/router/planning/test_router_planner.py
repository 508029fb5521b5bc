"""Planned sessions of a router: shared plans, trials, shadow drafts, who is waited for."""

from __future__ import annotations

from collections.abc import Callable

from models.protocol.messages import Proposal, Timing
from router.drafters.draft_model import DRAFT_MODEL
from router.planning.acceptance import AcceptanceEstimate, AcceptancePool
from router.planning.adaptive import PlannedSession, RouterPlanner
from router.planning.costs import PassCosts
from router.planning.round_plan import RoundPlan

MODEL = DRAFT_MODEL.traits


def measured(base_ms: float, row_ms: float, step_ms: float) -> PassCosts:
    costs = PassCosts()
    for num_rows in [1, 2, 4, 8, 16, 32, 64] * 30:
        costs.observe_pass(num_rows, base_ms + row_ms * num_rows)
    timing = Timing(pass_ms=step_ms, num_sessions=1)
    proposal = Proposal(session_id="s", seq=0, tokens=[1], timing=timing, step_ms=step_ms)
    costs.observe_draft(MODEL, proposal, step_ms)
    return costs


def cheap() -> PassCosts:
    return measured(20.0, 0.1, 1.0)


def dear() -> PassCosts:
    return measured(2.0, 10.0, 20.0)


class Sessions:
    """Sessions with their estimates, all on one replica unless said otherwise."""

    def __init__(self, costs: PassCosts) -> None:
        self.planner = RouterPlanner(costs)
        self.pool = AcceptancePool(MODEL.prior_acceptance["free"])

    def add(
        self, replica: Callable[[], str] = lambda: "target"
    ) -> tuple[PlannedSession, AcceptanceEstimate]:
        estimate = AcceptanceEstimate(self.pool)
        session = PlannedSession(
            self.planner, {MODEL.name: estimate}, replica, max_length=64, run_on=32
        )
        return session, estimate

    def plan(self, session: tuple[PlannedSession, AcceptanceEstimate], limit: int = 8) -> RoundPlan:
        return session[0].plan(MODEL, limit)


def test_sessions_on_a_replica_share_a_plan_until_one_comes_again() -> None:
    sessions = Sessions(cheap())
    three = [sessions.add() for _ in range(3)]
    for session in three:
        sessions.plan(session)
    before = sessions.planner.stats.num_plans
    for session in three:
        sessions.plan(session)
    assert sessions.planner.stats.num_plans == before + 1
    sessions.plan(three[1])
    assert sessions.planner.stats.num_plans == before + 1
    sessions.plan(three[2])
    assert sessions.planner.stats.num_plans == before + 2


def test_sessions_on_other_replicas_plan_apart() -> None:
    sessions = Sessions(cheap())
    one, other = sessions.add(lambda: "a"), sessions.add(lambda: "b")
    for _ in range(4):
        sessions.plan(one)
    before = sessions.planner.stats.num_plans
    sessions.plan(other)
    assert sessions.planner.stats.num_plans == before + 1


def test_a_session_moves_to_another_replica() -> None:
    place = ["a"]
    sessions = Sessions(cheap())
    moving, staying = sessions.add(lambda: place[0]), sessions.add(lambda: "a")
    sessions.plan(moving)
    sessions.plan(staying)
    place[0] = "b"
    sessions.plan(moving)
    assert list(sessions.planner.replica("a").sessions) == [staying[0]]
    assert list(sessions.planner.replica("b").sessions) == [moving[0]]


def test_who_leaves_is_not_planned_for() -> None:
    sessions = Sessions(cheap())
    one = sessions.add()
    sessions.plan(one)
    one[0].leave()
    one[0].leave()
    assert not sessions.planner.replica("target").sessions


def test_who_has_no_draft_counts_with_one_row_and_once_it_never_will_not_at_all() -> None:
    sessions = Sessions(cheap())
    session, _ = sessions.add()
    assert session.plan(MODEL, 8).num_draft_tokens > 0
    assert session.num_rows > 1
    assert session.plan(MODEL, 0) == RoundPlan(0, 1)
    assert session.num_rows == 1
    assert session.plan(None, 0) == RoundPlan(0, 32)
    assert not sessions.planner.replica("target").sessions


def test_while_it_pays_everybody_drafts_but_for_rare_plain_rounds() -> None:
    sessions = Sessions(cheap())
    two = [sessions.add() for _ in range(2)]
    lengths = [sessions.plan(session).num_draft_tokens for _ in range(200) for session in two]
    assert lengths.count(0) <= 20
    assert max(lengths) >= 3


def test_while_it_does_not_pay_the_target_goes_on_alone_and_trials_are_rare() -> None:
    sessions = Sessions(dear())
    two = [sessions.add() for _ in range(2)]
    plans = [sessions.plan(session) for _ in range(300) for session in two]
    drafted = [plan for plan in plans[40:] if plan.num_draft_tokens]
    assert len(drafted) <= 10
    assert all(plan.run_on >= 8 for plan in plans[40:] if not plan.num_draft_tokens)


def run_alone(sessions: Sessions, replica: str = "target", num_rounds: int = 3) -> list[RoundPlan]:
    """The rounds of a session that comes when all others have gone."""
    session = sessions.add(lambda: replica)
    plans = [sessions.plan(session) for _ in range(num_rounds)]
    session[0].leave()
    return plans


def test_requests_that_come_one_by_one_go_on_in_the_mode_that_was_found() -> None:
    sessions = Sessions(dear())
    for _ in range(10):
        run_alone(sessions)
    plans = [plan for _ in range(100) for plan in run_alone(sessions)]
    assert sum(1 for plan in plans if plan.num_draft_tokens) <= 5  # trials
    sessions = Sessions(cheap())
    for _ in range(10):
        run_alone(sessions)
    plans = [plan for _ in range(100) for plan in run_alone(sessions)]
    assert sum(1 for plan in plans if not plan.num_draft_tokens) <= 5


def test_the_modes_of_replicas_left_long_ago_are_forgotten() -> None:
    sessions = Sessions(dear())
    run_alone(sessions, "a", num_rounds=8)
    staying = sessions.add(lambda: "b")
    while sessions.plan(staying).num_draft_tokens:
        pass
    for index in range(15):
        run_alone(sessions, f"other{index}")
    assert not sessions.planner.replica("a").is_drafting
    for index in range(15, 100):
        run_alone(sessions, f"other{index}")
    assert len(sessions.planner._replicas) <= 17
    assert list(sessions.planner.replica("b").sessions) == [staying[0]]
    assert sessions.planner.replica("a").is_drafting, "it begins anew"


def test_shadow_drafts_are_one_at_a_time() -> None:
    sessions = Sessions(dear())
    two = [sessions.add() for _ in range(2)]
    shadows = []
    for _ in range(25):
        shadows += [sessions.plan(session).num_shadow_tokens for session in two]
    assert sum(1 for length in shadows if length) == 1
    for session in two:
        session[0].observe_shadow(3, 0)
    again = [sessions.plan(session).num_shadow_tokens for _ in range(5) for session in two]
    assert sum(1 for length in again if length) == 1


def test_a_shadow_draft_that_was_given_up_blocks_nobody() -> None:
    sessions = Sessions(dear())
    one, other = sessions.add(), sessions.add()
    while not sessions.plan(one).num_shadow_tokens:
        pass
    while not sessions.plan(one).num_draft_tokens:  # a trial: its shadow draft is given up
        pass
    plans = [sessions.plan(other).num_shadow_tokens for _ in range(10)]
    assert any(plans)


def test_drafting_begins_when_shadow_drafts_stand() -> None:
    sessions = Sessions(measured(20.0, 1.0, 6.0))
    session = sessions.add()
    for _ in range(60):
        session[1].observe(3, 0)
    for _ in range(12):  # called off, after it was given its chance
        plan = sessions.plan(session)
        session[0].observe_shadow(min(plan.num_shadow_tokens, 3), 0)
    assert plan.num_draft_tokens == 0
    num_shadows = 0
    while not plan.num_draft_tokens or plan.predicted_ms == 0.0:
        plan = sessions.plan(session)
        num_shadows += plan.num_shadow_tokens > 0
        session[0].observe_shadow(plan.num_shadow_tokens, plan.num_shadow_tokens)
        assert num_shadows < 40, "shadow drafts stood for long and nobody began to draft"
    for _ in range(60):
        plan = sessions.plan(session)
        session[1].observe(plan.num_draft_tokens, plan.num_draft_tokens)
    assert sessions.planner.replica("target").is_drafting
    assert max(sessions.planner.stats.lengths) >= 4


def test_who_runs_on_is_awaited_once_the_others_draft() -> None:
    sessions = Sessions(measured(20.0, 1.0, 6.0))
    one, other = sessions.add(), sessions.add()
    for _ in range(60):
        one[1].observe(3, 0)
    for _ in range(12):
        sessions.plan(one)
        sessions.plan(other)
    assert not one[0].is_awaited
    for _ in range(400):
        sessions.pool.observe(8, 8)
        one[1].observe(8, 8)
    while sessions.plan(one).num_draft_tokens < 3:
        pass
    assert other[0].is_awaited
    sessions.plan(other)
    assert not other[0].is_awaited


def test_the_load_of_others_is_learnt_from_passes() -> None:
    sessions = Sessions(measured(20.0, 0.5, 6.0))
    session = sessions.add()
    alone = max(sessions.plan(session).num_draft_tokens for _ in range(10))
    for _ in range(300):
        session[0].observe_pass(Timing(pass_ms=50.0, num_rows=64, num_sessions=60))
    crowded = min(sessions.plan(session).num_draft_tokens for _ in range(10))
    assert crowded < alone


def test_predicted_and_actual_times_are_kept() -> None:
    sessions = Sessions(cheap())
    session = sessions.add()
    plan = next(plan for _ in range(9) if (plan := sessions.plan(session)).num_draft_tokens)
    session[0].observe_round(plan, 30.0)
    stats = sessions.planner.stats
    assert stats.actual_ms == 30.0
    assert stats.predicted_ms == plan.predicted_ms > 20.0
    assert sum(stats.lengths.values()) >= 1
