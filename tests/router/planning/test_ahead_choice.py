"""Measured rounds decide if drafts are made ahead, and the other way has short turns."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from router.drafters.draft_model import DRAFT_MODEL
from router.limits import SpeculationLimits
from router.planning.ahead import AheadChoice
from router.planning.costs import PassCosts
from router.planning.fixed import FixedPlanner
from tests.fakes.planned_world import CHEAP, World
from tests.router.replies import proposal

_TOKENS = 3.0


class Rounds:
    """Rounds of some sessions in step, whose time depends on the way."""

    def __init__(self, round_ms: Callable[[bool], float], num_sessions: int = 1) -> None:
        self.now_s = 0.0
        self.choice = AheadChoice(lambda: self.now_s)
        self.round_ms = round_ms
        self._num_sessions = num_sessions
        self.spent_s = {True: 0.0, False: 0.0}

    def run(self, seconds: float) -> None:
        until_s = self.now_s + seconds
        while self.now_s < until_s:
            is_on = self.choice.is_on
            elapsed_ms = self.round_ms(is_on)
            self.now_s += elapsed_ms / 1e3
            self.spent_s[is_on] += elapsed_ms / 1e3
            for _ in range(self._num_sessions):
                self.choice.observe(_TOKENS, elapsed_ms, self._num_sessions)


@pytest.mark.parametrize("num_sessions", [1, 8])
@pytest.mark.parametrize("is_faster", [True, False])
def test_the_faster_way_is_found_and_the_other_one_has_little_time(
    is_faster: bool, num_sessions: int
) -> None:
    rounds = Rounds(lambda is_on: 20.0 if is_on is is_faster else 28.0, num_sessions)
    rounds.run(5.0)
    rounds.spent_s = {True: 0.0, False: 0.0}
    rounds.run(600.0)
    lost_s = rounds.spent_s[not is_faster] * (1.0 - 20.0 / 28.0)
    assert 0.0 < lost_s < 0.006 * 600.0


def test_it_turns_when_the_machine_does() -> None:
    times = {True: 20.0, False: 28.0}
    rounds = Rounds(lambda is_on: times[is_on])
    rounds.run(60.0)
    assert rounds.choice.is_on
    times[True] = 40.0
    rounds.run(200.0)
    rounds.spent_s = {True: 0.0, False: 0.0}
    rounds.run(60.0)
    assert rounds.spent_s[False] > 0.9 * 60.0


def test_two_equal_ways_are_not_taken_by_turns_for_ever() -> None:
    rounds = Rounds(lambda is_on: 20.0)
    rounds.run(100.0)
    assert min(rounds.spent_s.values()) < 0.25 * 100.0


def test_a_session_asks_for_branches_while_the_way_is_in_use() -> None:
    world = World(CHEAP)
    session = world.add()
    assert session.num_branches == 0
    session.max_branches = 9
    seen = []
    for _ in range(200):
        world.rounds([session], 1)
        seen.append(session.num_branches)
    assert set(seen) == {0, 9}
    assert seen[:16] == [9] * 16


def test_a_fixed_k_has_the_branches_that_were_set() -> None:
    planner = FixedPlanner(4, 0)
    assert planner.num_branches == 0
    planner.max_branches = 9
    assert planner.num_branches == 9


def observe_drafts(
    costs: PassCosts, *nums_ahead: int, num_tokens: int = 2, is_ahead: bool = True
) -> None:
    """Take in 200 drafts for each of `nums_ahead`, the tokens that were there when it was asked."""
    for _ in range(200):
        for num_ahead in nums_ahead:
            num_sessions = int(num_tokens > num_ahead)  # 0: no step was taken
            draft = proposal(num_tokens, 3.0, num_sessions=num_sessions, num_ahead=num_ahead)
            costs.observe_draft(DRAFT_MODEL.traits, draft, is_ahead=is_ahead)


def waited(costs: PassCosts, *depths: float, is_ahead: bool = True) -> list[float]:
    of_round = costs.of_round([DRAFT_MODEL.name], is_ahead=is_ahead)
    return [of_round.draft_ms(depth, 1) / 3.0 for depth in depths]


def test_steps_that_nobody_waits_for_cost_nothing_ahead() -> None:
    costs = PassCosts()
    observe_drafts(costs, 0)
    assert waited(costs, 1, 2, 2.5) == [1.0, 2.0, 2.5]
    observe_drafts(costs, 2, 1)
    assert waited(costs, 1, 2) == pytest.approx([0.0, 0.5], abs=0.1)
    observe_drafts(costs, 0, is_ahead=False)  # so nothing is learnt of drafts ahead
    assert waited(costs, 1, 2) == pytest.approx([0.0, 0.5], abs=0.1)
    assert waited(costs, 1, 2, is_ahead=False) == [1.0, 2.0]


def test_the_slowest_of_several_drafters_is_waited_for() -> None:
    costs, other = PassCosts(), replace(DRAFT_MODEL.traits, name="other")
    for drafter, step_ms, num_ahead in ((DRAFT_MODEL.traits, 5.0, 2), (other, 2.0, 0)):
        for ahead in [0] + [num_ahead] * 200:
            costs.observe_draft(drafter, proposal(2, step_ms, num_ahead=ahead))
    names = (DRAFT_MODEL.name, "other")
    assert costs.of_round(names).draft_ms(2, 1) == pytest.approx(10.0)
    assert costs.of_round(names, is_ahead=True).draft_ms(2, 1) == pytest.approx(4.0)


def test_a_deeper_draft_waits_for_what_cannot_be_there_in_time() -> None:
    """The draft model has the time of a pass, whatever the depth; a mean share hides that."""
    costs = PassCosts()
    observe_drafts(costs, 0, num_tokens=3)
    observe_drafts(costs, 3, num_tokens=3)
    assert waited(costs, 3, 6) == pytest.approx([0.0, 0.0], abs=0.1), "none was asked for so deep"
    observe_drafts(costs, 4, num_tokens=6)
    assert waited(costs, 3, 4, 4.5, 6, 8) == pytest.approx([0.0, 0.0, 0.5, 2.0, 4.0], abs=0.1)


def test_a_change_of_mode_makes_drafts_ahead_again_and_keeps_the_pause() -> None:
    rounds = Rounds(lambda is_on: 28.0 if is_on else 20.0)
    rounds.run(5.0)
    assert not rounds.choice.is_on
    rounds.choice.forget()
    assert rounds.choice.is_on
    assert not rounds.choice.is_turn
    rounds.run(2.0)  # more rounds than come before a turn, less time than the pause
    assert rounds.choice.is_on


def test_a_guess_of_a_draft_that_is_there_is_refused() -> None:
    with pytest.raises(ValueError, match="draft_ahead does not go with drafted_by"):
        SpeculationLimits(draft_ahead=9, drafted_by={"draft_model": "tiny"})
