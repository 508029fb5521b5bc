"""Planned sessions of a router, in virtual time: plans, modes, control rounds and probes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from models.protocol.messages import Timing
from router.drafters.misses import Misses
from router.planning.adaptive import PlannedSession, RouterPlanner
from router.planning.round_plan import Mode
from router.ports import DraftCost
from tests.fakes.planned_world import CHEAP, DEAR, MODEL, Machine, World, drafted


def test_making_plans_takes_half_a_hundredth_of_the_time() -> None:
    world = World(CHEAP, tick_s=0.0003)
    sessions = [world.add() for _ in range(4)]
    world.rounds(sessions, 20)
    began_s, before = world.now_s, world.planner.stats.num_plans
    world.rounds(sessions, 400)
    num_plans = world.planner.stats.num_plans - before
    # Making a plan reads the clock twice, so it takes 0.3 ms.
    assert 0.5 <= num_plans * 0.0003 / (0.005 * (world.now_s - began_s)) <= 1.0


def test_every_session_takes_its_own_k_from_a_plan_that_is_kept() -> None:
    world = World(Machine(base_ms=20.0, row_ms=1.0, step_ms=6.0), tick_s=0.01)
    good, bad = world.add(), world.add()
    for session, num_accepted in ((good, 8), (bad, 0)):
        for _ in range(200):
            session.observe(MODEL, 8, num_accepted)
    world.round([good, bad])
    before = world.planner.stats.num_plans
    plans = world.round([good, bad])
    assert plans[0].num_draft_tokens > plans[1].num_draft_tokens
    assert world.planner.stats.num_plans == before


def test_sessions_on_other_replicas_plan_apart() -> None:
    world = World(CHEAP)
    one, other = world.add(lambda: "a"), world.add(lambda: "b")
    world.rounds([one], 4)
    world.rounds([other], 1)
    assert list(world.planner.replica("a").sessions) == [one]
    assert list(world.planner.replica("b").sessions) == [other]


def test_a_session_moves_to_another_replica() -> None:
    place = ["a"]
    world = World(CHEAP)
    moving, staying = world.add(lambda: place[0]), world.add(lambda: "a")
    world.round([moving, staying])
    place[0] = "b"
    world.round([moving])
    assert list(world.planner.replica("a").sessions) == [staying]
    assert list(world.planner.replica("b").sessions) == [moving]


def test_a_session_without_a_replica_yet_is_planned_with_those_that_came_last() -> None:
    world = World(DEAR)
    world.rounds([world.add(lambda: "a")], 40)
    assert not world.add(lambda: "").wants_drafter
    for name in "ba":
        world.round([world.add(lambda name=name: name)])  # type: ignore[misc]
        assert world.planner.newest == name


def test_who_leaves_is_not_planned_for() -> None:
    world = World(CHEAP)
    one = world.add()
    world.round([one])
    one.leave()
    one.leave()
    assert not world.planner.replica("target").sessions


def test_a_drafter_that_is_not_ready_is_not_waited_for() -> None:
    world = World(CHEAP)
    session = world.add()
    assert session.plan(MODEL, 8).num_draft_tokens > 0
    assert session.num_rows > 1
    plan = session.plan(MODEL, 8, is_ready=False)
    assert (plan.num_draft_tokens, plan.run_on, session.num_rows) == (0, 1, 1)
    plan = session.plan(None, 0)
    assert (plan.num_draft_tokens, plan.run_on) == (0, 32)
    assert not world.planner.replica("target").sessions


def test_while_it_pays_everybody_drafts_but_for_rare_control_rounds() -> None:
    world = World(CHEAP)
    sessions = [world.add() for _ in range(2)]
    plans = world.rounds(sessions, 100)
    world.now_s += 60.0
    plans += world.rounds(sessions, 200)
    control = [plan for plan in plans if plan.num_draft_tokens == 0]
    assert {plan.reason for plan in control} == {"control"}
    assert len(control) == 2, "one of each session"
    for plan in plans:  # a control round has no free drafts either
        assert (plan.min_survival > 1.0) == (plan.reason == "control")
    assert max(plan.num_draft_tokens for plan in plans) == 8


def test_a_promise_that_rounds_do_not_keep_is_called_off() -> None:
    """By its parts drafting is twice as fast; what happens between them makes it slower."""
    believed, real = World(Machine(acceptance=0.7)), World(Machine(acceptance=0.7, friction=6.0))
    for world in (believed, real):
        world.rounds([world.add() for _ in range(4)], 200)
    assert believed.mode() is Mode.DRAFTING
    assert real.mode() is Mode.PLAIN


def test_what_stopped_paying_is_found_and_what_begins_to_pay_again() -> None:
    world = World(Machine(row_ms=1.0, step_ms=6.0, acceptance=0.0))
    sessions = [world.add() for _ in range(2)]
    world.rounds(sessions, 60)
    assert world.mode() is Mode.PLAIN
    world.machine = Machine(row_ms=1.0, step_ms=6.0)
    world.rounds(sessions, 60)
    assert world.mode() is Mode.DRAFTING
    assert len(drafted(world.rounds(sessions, 50))) >= 80


def test_requests_that_come_one_by_one_go_on_in_the_mode_that_was_found() -> None:
    for machine, is_drafting in ((DEAR, False), (CHEAP, True)):
        world = World(machine)
        plans = []
        for _ in range(110):
            session = world.add()
            plans += world.rounds([session], 3)
            session.leave()
        late = plans[60:]
        share = len(drafted(late)) / len(late)
        assert share >= 0.9 if is_drafting else share <= 0.1


def test_the_modes_of_replicas_left_long_ago_are_forgotten() -> None:
    world = World(DEAR)

    def visit(replica: str, number: int = 1) -> None:
        session = world.add(lambda: replica)
        world.rounds([session], number)
        session.leave()

    visit("a", 40)
    staying = world.add(lambda: "b")
    world.rounds([staying], 40)
    for index in range(15):
        visit(f"other{index}")
    assert world.mode("a") is Mode.PLAIN
    for index in range(15, 100):
        visit(f"other{index}")
    assert list(world.planner.replica("b").sessions) == [staying]
    assert world.mode("b") is Mode.PLAIN
    assert world.mode("a") is Mode.DRAFTING, "it begins anew"


def at_rest(num_sessions: int) -> tuple[World, list[PlannedSession]]:
    """Make sessions that do not draft, because that does not pay."""
    world = World(DEAR)
    sessions = [world.add() for _ in range(num_sessions)]
    world.rounds(sessions, 40)
    assert world.mode() is Mode.PLAIN
    return world, sessions


def test_while_it_does_not_pay_the_target_goes_on_alone_and_probes_are_rare() -> None:
    world, sessions = at_rest(2)
    began_s = world.now_s
    plans = world.rounds(sessions, 300)
    probes = drafted(plans)
    assert {plan.reason for plan in probes} == {"probe"}
    lost_s = len(probes) / 2 * 4 * world.machine.step_ms / 1e3
    assert lost_s <= 0.03 * (world.now_s - began_s)
    assert all(plan.run_on == 32 for plan in plans)


def test_where_nobody_drafts_no_drafter_is_connected_to_but_for_probes() -> None:
    world = World(DEAR)
    sessions = [world.add() for _ in range(3)]
    assert all(session.wants_drafter for session in sessions)
    world.rounds(sessions, 40)
    assert world.mode() is Mode.PLAIN
    for _ in range(40):
        probing = [session for session in sessions if session.wants_drafter]
        assert probing == [session for session in sessions if session.is_probing]
        assert len(probing) <= 1
        world.round(sessions)


def test_probes_are_made_one_at_a_time_and_wait_for_their_drafter() -> None:
    world, sessions = at_rest(2)
    world.now_s += 100.0
    waiting = [s.plan(MODEL, 8, is_ready=False) for _ in range(3) for s in sessions]
    assert not drafted(waiting)
    assert {plan.run_on for plan in waiting} == {1, 32}, "the one that is to probe asks soon again"
    plans = [s.plan(MODEL, 8) for _ in range(10) for s in sessions]
    assert [plan.num_draft_tokens for plan in drafted(plans)] == [4]


def test_a_probe_whose_draft_does_not_come_ends_too() -> None:
    world, (one, other) = at_rest(2)
    world.now_s += 100.0
    probe = one.plan(MODEL, 8)
    assert probe.is_probe
    one.observe_round(Misses().next_plan(probe), 2, 60.0)
    assert not one.is_probing
    world.now_s += 100.0
    assert other.plan(MODEL, 8).is_probe


def test_a_copying_drafter_that_has_nothing_yet_is_asked_again_within_the_text() -> None:
    """Or texts that come one by one would be asked at their beginning, where nothing repeats."""
    world, (session,) = at_rest(1)
    copying = replace(MODEL, cost=DraftCost.FREE)
    for _ in range(200):
        session.observe(copying, 4, 0)
    world.now_s += 100.0
    session.plan(copying, 8)
    session.leave()
    world.now_s += 100.0
    session = world.add()
    before = tuple(world.pool.acceptances())
    for _ in range(3):
        probe = session.plan(copying, 8)
        assert probe.is_probe
        missed = Misses().next_plan(probe)
        assert missed.run_on == probe.run_on, "the target goes on alone as in any plain round"
        world.now_s += 0.4
        session.observe_round(missed, 33, 400.0)
    session.leave(99)
    other = world.add()
    assert other.plan(copying, 8).is_probe, "the next text is asked at once"
    world.now_s += 0.5
    other.observe(copying, 4, 3)
    other.observe_round(other.newest, 36, 500.0)
    assert not other.plan(copying, 8).is_probe
    assert tuple(world.pool.acceptances()) > before


def test_a_missed_probe_counts_as_one_look_however_far_the_target_goes_on() -> None:
    world, (session,) = at_rest(1)
    world.now_s += 100.0
    before = world.pool.presence
    session.observe_round(Misses().next_plan(session.plan(MODEL, 8)), 33, 400.0)
    assert 0.8 * before < world.pool.presence < before


def test_a_probe_whose_session_leaves_blocks_nobody() -> None:
    world, (one, other) = at_rest(2)
    world.now_s += 100.0
    assert one.plan(MODEL, 8).is_probe
    world.now_s += 0.1
    one.leave()
    assert not any(other.plan(MODEL, 8).is_probe for _ in range(10)), "a pause has begun"
    world.now_s += 100.0
    assert other.plan(MODEL, 8).is_probe


def until_the_next_probe(reading_s: float) -> float:
    """Seconds from a probe to the next one, where the drafter read the text before the first."""
    world, (session,) = at_rest(1)
    world.now_s += 100.0
    waiting = session.plan(MODEL, 8, is_ready=False)
    assert waiting.reason == "probes soon"
    world.now_s += reading_s
    session.observe_round(waiting, 2, 1e3 * reading_s)
    (probe,) = world.round([session])
    assert probe.is_probe
    began_s = world.now_s
    while not drafted(world.round([session])):
        assert world.now_s < began_s + 100.0
    return world.now_s - began_s


def test_the_time_in_which_its_drafter_reads_the_text_is_paid_for_too() -> None:
    assert until_the_next_probe(0.3) >= until_the_next_probe(0.0) + 20.0


def test_a_probe_weighs_more_than_what_was_seen_long_ago() -> None:
    world = World(Machine(row_ms=1.0, step_ms=6.0, acceptance=0.0))
    session = world.add()
    world.rounds([session], 60)
    assert world.mode() is Mode.PLAIN
    before = session.survival()[0]
    world.now_s += 100.0
    world.machine = Machine(row_ms=1.0, step_ms=6.0)
    (probe,) = world.round([session])
    assert probe.is_probe
    assert session.survival()[0] > before + 0.1


def test_what_drafting_took_once_is_not_held_against_it_for_ever() -> None:
    """Rounds with a draft were slow for a while. Nobody drafts since, so only probes can tell."""
    world = World(Machine(acceptance=0.7, friction=6.0))
    sessions = [world.add() for _ in range(4)]
    world.rounds(sessions, 200)
    assert world.mode() is Mode.PLAIN
    world.machine = Machine(acceptance=0.7)
    for _ in range(300):
        world.round(sessions)
        if world.mode() is Mode.DRAFTING:
            break
    assert world.mode() is Mode.DRAFTING


def test_a_session_that_is_away_is_not_planned_for() -> None:
    """Its client is slow, so it asks for no rounds while the other makes many."""
    world = World(CHEAP)
    away, here = world.add(), world.add()
    world.rounds([away, here], 4)
    world.rounds([here], 60)
    assert len(world.planner.replica("target").plans[Mode.DRAFTING].lengths) == 1


def test_a_cold_planner_gets_to_the_best_depth_in_few_rounds() -> None:
    world = World(Machine(base_ms=40.0, row_ms=1.0, step_ms=2.0))
    session = world.add()
    lengths = [plan.num_draft_tokens for plan in world.rounds([session], 30)]
    assert min(lengths) >= 1
    assert lengths[-1] == 8


def test_who_runs_on_is_awaited_once_the_others_draft() -> None:
    world = World(Machine(row_ms=1.0, step_ms=6.0, acceptance=0.0))
    one, other = world.add(), world.add()
    while world.mode() is Mode.DRAFTING or other.newest.mode is Mode.DRAFTING:
        world.round([one, other])
    assert not other.is_awaited
    world.machine = Machine(row_ms=1.0, step_ms=6.0)
    while not one.plan(MODEL, 8).num_draft_tokens:
        world.now_s += 0.1
        one.observe(MODEL, 8, 8)
    assert other.is_awaited
    other.plan(MODEL, 8)
    assert not other.is_awaited


def test_a_round_that_ends_after_all_drafting_plans_are_gone_is_still_taken_in() -> None:
    """One session waits for its client while another comes whose text has room for no draft."""
    world = World(CHEAP)
    slow, other = world.add(), world.add()
    world.rounds([slow, other], 6)
    plan = slow.plan(MODEL, 8)
    assert plan.num_draft_tokens > 0
    other.leave()
    short = world.add()
    for _ in range(40):
        short.plan(MODEL, 0)
        world.now_s += 0.02
    assert Mode.DRAFTING not in world.planner.replica("target").plans
    slow.observe_round(plan, 3, 30.0)


def test_the_last_rounds_of_a_text_do_not_make_the_plan_of_others() -> None:
    """A plan is kept for a while: one that was made with room for a token must not be for one."""
    world = World(CHEAP)
    first, second = world.add(), world.add()
    world.rounds([first, second], 20)
    depth = world.planner.replica("target").plans[Mode.DRAFTING].depth
    assert depth > 1
    for room in (1, 0, 1, 0):
        for session in (first, second):
            session.plan(MODEL, room)
        world.now_s += 1.0
    plans = world.planner.replica("target").plans
    assert plans[Mode.DRAFTING].depth == depth


def test_a_plan_that_was_interrupted_is_not_kept_for_long() -> None:
    world = World(CHEAP, tick_s=0.0002)
    sessions = [world.add() for _ in range(2)]
    world.rounds(sessions, 40)
    world.tick_s = 0.2  # for one plan only: something else ran meanwhile
    stats, before = world.planner.stats, world.planner.stats.num_plans
    while stats.num_plans == before:
        world.round(sessions)
    world.tick_s = 0.0002
    began_s, before = world.now_s, stats.num_plans
    while stats.num_plans == before:
        world.round(sessions)
    assert world.now_s - began_s < 1.0


def test_the_load_of_others_is_learnt_from_passes() -> None:
    world = World(Machine(row_ms=0.5, step_ms=6.0))
    session = world.add()
    alone = max(plan.num_draft_tokens for plan in world.rounds([session], 10))
    for _ in range(300):
        session.observe_pass(Timing(pass_ms=50.0, num_rows=64, num_sessions=60))
    crowded = min(plan.num_draft_tokens for plan in world.rounds([session], 10))
    assert crowded < alone


def test_predicted_and_actual_times_are_kept() -> None:
    world = World(CHEAP)
    world.rounds([world.add()], 30)
    stats = world.planner.stats
    assert stats.predicted_ms == pytest.approx(stats.actual_ms, rel=0.05)
    assert stats.actual_ms > 100.0
    assert sum(stats.lengths.values()) == 30


def test_the_gain_is_measured_by_control_rounds() -> None:
    world = World(CHEAP)
    sessions = [world.add() for _ in range(2)]
    world.rounds(sessions, 4)
    assert world.planner.gains.by_task()["free"].ratio is None, "there was no control round yet"
    for _ in range(12):
        world.rounds(sessions, 100)
        world.now_s += 60.0
    gain = world.planner.gains.by_task()["free"]
    plain_per_s = 1e3 / world.machine.pass_ms(2)
    assert gain.without_drafts == pytest.approx(plain_per_s, rel=0.01)
    assert gain.ratio is not None
    assert gain.ratio == gain.with_drafts / gain.without_drafts > 3.0
    assert gain.num_rounds_without < 0.1 * gain.num_rounds_with
    world.now_s += 24 * 3600.0
    world.rounds(sessions, 5)
    later = world.planner.gains.by_task()["free"]
    assert later.ratio is None, "nearly all was yesterday"
    assert later.num_rounds_with > gain.num_rounds_with


def test_a_choice_can_be_explained() -> None:
    world = World(CHEAP)
    session = world.add()
    world.rounds([session], 30)
    found = session.explain()
    assert found.mode == "drafting"
    assert found.num_draft_tokens >= 4
    assert found.reason in ("depth", "price")
    assert list(found.survival) == sorted(found.survival, reverse=True)
    assert found.survival[found.num_draft_tokens - 1] >= found.min_survival
    assert found.drafting_per_ms > found.plain_per_ms > 0.0
    assert found.num_sessions == 1


@pytest.mark.parametrize("pinned", [0, 3])
def test_a_pinned_k_is_planned_with_all_the_machinery_and_nothing_else(pinned: int) -> None:
    world = World(CHEAP)
    world.planner = RouterPlanner(world.machine.costs(), world.clock, pinned)
    plans = world.rounds([world.add() for _ in range(2)], 50)
    assert {plan.num_draft_tokens for plan in plans} == {pinned}
    assert world.planner.stats.num_plans > 0
