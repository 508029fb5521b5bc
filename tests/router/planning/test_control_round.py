"""A control round gathers its sessions, waits for none that left, and ends."""

from __future__ import annotations

import pytest

from router.planning.control import ControlRound
from router.planning.member import PlanMember
from tests.fakes.planned_world import CHEAP, World


def members(number: int) -> list[PlanMember]:
    return [PlanMember({}, 8, 32) for _ in range(number)]


def begun(sessions: list[PlanMember]) -> ControlRound:
    control = ControlRound()
    control.begin(sessions, 100)
    return control


def test_each_enters_once_and_it_is_over_when_all_have_ended() -> None:
    one, other, late = members(3)
    control = begun([one, other])
    assert control.is_on
    assert control.enter(one)
    assert not control.enter(late), "it came later"
    assert not control.end_round(one, 101)
    assert control.is_gathering, "the other one has not begun"
    assert not control.enter(one), "not again"
    assert control.enter(other)
    assert not control.is_gathering
    assert control.end_round(other, 102)
    assert not control.is_on
    assert not control.end_round(other, 103), "it was over"


def test_one_that_leaves_is_waited_for_no_longer() -> None:
    one, other = members(2)
    control = begun([one, other])
    control.enter(one)
    assert not control.leave(other)
    assert not control.is_gathering
    assert control.leave(one)
    assert not control.is_on


@pytest.mark.parametrize(("round_number", "is_over"), [(106, False), (107, True)])
def test_it_ends_for_all_where_it_takes_long(round_number: int, is_over: bool) -> None:
    one, other = members(2)
    control = begun([one, other])
    control.enter(one)
    assert control.end_round(other, round_number) is is_over
    assert control.is_on is not is_over


def test_sessions_gather_until_the_last_has_begun_or_left() -> None:
    world = World(CHEAP)
    one, other, gone = world.add(), world.add(), world.add()
    world.rounds([one, other, gone], 100)
    world.now_s += 60.0
    assert world.round([one])[0].is_control
    assert one.is_gathering
    gone.leave()
    assert one.is_gathering
    assert world.round([other])[0].is_control
    assert not one.is_gathering
