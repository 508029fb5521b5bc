"""Drafts that are asked for at one moment begin together; others are not waited for."""

from __future__ import annotations

from itertools import pairwise

from models.scheduler.gathering import Gathering

STEP_S = 0.010


class Group:
    """Groups of drafts, one after the other, and how long each first step was held back."""

    def __init__(self) -> None:
        self.gathering = Gathering()
        self.now_s = 0.0

    def run(self, *arrivals_s: float) -> tuple[float, int]:
        """Ask for drafts at these times; return when their first step begins, and of how many."""
        start_s = self.now_s
        left = list(arrivals_s)
        num_begun, begun_s = 0, 0.0
        num_asked = 0
        while left:
            self.now_s = start_s + left.pop(0)
            num_asked += 1
            self.gathering.note_asked(num_asked, self.now_s)
            if left and start_s + left[0] == self.now_s:
                continue  # an engine takes all messages that are there
            wait_s = self.gathering.wait_s(STEP_S, self.now_s)
            comes_s = start_s + left[0] - self.now_s if left else 1.0
            if num_begun == 0 and wait_s < comes_s:
                num_begun, begun_s = num_asked, round(self.now_s + wait_s - start_s, 6)
                self.gathering.note_step()
        self.now_s = start_s + 1.0
        return begun_s, num_begun


def test_a_group_is_waited_for_up_to_as_many_as_the_one_before_had() -> None:
    group = Group()
    assert group.run(0.0, 0.001, 0.002) == (0.0, 1), "nothing is known of it"
    assert group.run(0.0, 0.001, 0.002) == (0.002, 3)
    begun_s, num_begun = group.run(0.0, 0.001)
    assert (begun_s, num_begun) == (0.001 + STEP_S / 4, 2), "the third stays away"
    assert group.run(0.0, 0.001) == (0.001, 2)


def test_no_wait_is_longer_than_half_a_step() -> None:
    group = Group()
    arrivals_s = [0.0018 * number for number in range(9)]
    group.run(*arrivals_s)
    begun_s, num_begun = group.run(*arrivals_s)
    assert begun_s == STEP_S / 2
    assert num_begun == 3


def test_one_that_is_alone_waits_for_nobody() -> None:
    group = Group()
    assert [group.run(0.0) for _ in range(3)] == [(0.0, 1)] * 3


def test_those_who_come_late_are_waited_for_ever_more_rarely() -> None:
    group = Group()
    waits = [group.run(0.0, 0.6 * STEP_S)[0] > 0.0 for _ in range(200)]
    tried = [number for number, has_waited in enumerate(waits) if has_waited]
    pauses = [after - before for before, after in pairwise(tried)]
    assert pauses == sorted(pauses)
    assert 3 < len(tried) < 10
    assert pauses[-1] > 60


def test_they_are_waited_for_again_once_they_come_together() -> None:
    group = Group()
    for _ in range(100):
        group.run(0.0, 0.6 * STEP_S)
    begun = [group.run(0.0, 0.001)[1] for _ in range(100)]
    assert begun[-1] == 2
    assert sum(num == 2 for num in begun) > 30


def test_drafts_that_came_at_once_are_no_success_of_a_wait() -> None:
    """Half of the sessions come late in the step, as where two groups take turns."""
    group = Group()
    arrivals_s = [0.0, 0.0, 0.6 * STEP_S, 0.6 * STEP_S]
    waits = [group.run(*arrivals_s)[0] > 0.0 for _ in range(200)]
    assert sum(waits) < 30


def test_more_are_waited_for_now_and_then() -> None:
    group = Group()
    for _ in range(20):
        group.run(0.0, 0.001, 0.6 * STEP_S)
    begun = [group.run(0.0, 0.001, 0.002)[1] for _ in range(200)]
    assert begun[-1] == 3
