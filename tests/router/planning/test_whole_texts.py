"""Whole texts, bursts and idle time, and who may draft beside a control round."""

from __future__ import annotations

import math

import pytest

from router.planning.round_plan import Mode
from tests.fakes.planned_world import CHEAP, MODEL, Machine, World


def test_idle_time_is_held_against_nothing_that_was_measured() -> None:
    world = World(Machine(acceptance=0.7, friction=6.0))
    sessions = [world.add() for _ in range(4)]
    world.rounds(sessions, 200)
    for session in sessions:
        session.leave(100)
    world.now_s += 600.0
    plans = world.rounds([world.add() for _ in range(4)], 4)
    assert {plan.mode for plan in plans} == {Mode.PLAIN}


def test_nobody_drafts_beside_a_control_round() -> None:
    world = World(CHEAP)
    one, other, late = world.add(), world.add(), world.add()
    world.rounds([one, other], 100)
    world.now_s += 60.0
    controls = [session.plan(MODEL, 8) for session in (one, other)]
    assert [plan.reason for plan in controls] == ["control", "control"]
    one.observe_round(controls[0], 33, 700.0)
    beside = [session.plan(MODEL, 8) for session in (one, late)]
    assert {(plan.num_draft_tokens, plan.is_control) for plan in beside} == {(0, False)}
    assert {plan.min_survival for plan in beside} == {math.inf}, "no free drafts either"
    assert not late.is_awaited
    other.observe_round(controls[1], 33, 700.0)
    assert late.is_awaited
    assert late.plan(MODEL, 8).num_draft_tokens > 0


@pytest.mark.parametrize("leaves", [True, False])
def test_a_control_round_that_does_not_end_holds_up_nobody(leaves: bool) -> None:
    world = World(CHEAP)
    one, stuck = world.add(), world.add()
    world.rounds([one, stuck], 100)
    world.now_s += 60.0
    controls = [session.plan(MODEL, 8) for session in (one, stuck)]
    one.observe_round(controls[0], 33, 700.0)
    if leaves:
        stuck.leave()
    plans = world.rounds([one], 1 if leaves else 7)
    assert (plans[0].num_draft_tokens > 0) is leaves
    assert plans[-1].num_draft_tokens > 0


def test_a_plan_is_made_anew_when_sessions_are_twice_as_many() -> None:
    world = World(CHEAP, tick_s=0.0003)
    one, *others = (world.add() for _ in range(4))
    world.rounds([one], 10)
    first = one.plan(MODEL, 8)
    assert first.promise is not None
    assert len(first.promise.lengths) == 1
    plans = [session.plan(MODEL, 8) for session in others]
    assert [len(plan.promise.lengths) for plan in plans if plan.promise] == [2, 2, 4]
    before = world.planner.stats.actual_ms
    one.observe_round(first, 5, 100.0)  # it was promised to a session alone
    assert world.planner.stats.actual_ms == before


def modes_of_texts(world: World, wait_ms: float, most: int, num_texts: int = 60) -> list[Mode]:
    """Modes of texts of `most` tokens one by one; where they draft, they wait for the draft."""
    modes = []
    for _ in range(num_texts):
        session, num_tokens = world.add(), 0
        while num_tokens < most:
            if num_tokens == 0 and world.mode() is Mode.DRAFTING:
                waiting = session.plan(MODEL, 8, is_ready=False)
                world.now_s += wait_ms / 1e3
                session.observe_round(waiting, 2, wait_ms)
                num_tokens += 2
            (plan,) = world.round([session])
            k = plan.num_draft_tokens
            num_tokens += 1 + round(world.machine.acceptance * k) + plan.run_on
        session.leave(num_tokens)
        modes.append(world.mode())
    return modes


@pytest.mark.parametrize("most", [20, 60])
def test_texts_that_wait_for_their_drafts_are_better_off_without(most: int) -> None:
    machine = Machine(acceptance=0.7, friction=2.5)
    soon = modes_of_texts(World(machine), 40.0, most)
    assert soon[-1] is Mode.DRAFTING
    late = modes_of_texts(World(machine), 1500.0, most)
    assert late[10:].count(Mode.PLAIN) > 30, "it is tried again now and then"


def test_a_text_that_moved_says_what_it_took_on_its_last_replica() -> None:
    place = ["a"]
    world = World(CHEAP)
    session = world.add(lambda: place[0])
    world.rounds([session], 3)
    place[0] = "b"
    world.rounds([session], 2)
    assert session.num_tokens < session.elapsed_ms
    before = session.num_tokens
    world.round([session])
    assert 0 < session.num_tokens - before == before / 2
