"""What rounds teach the planner of costs, and which of them teach nothing."""

from __future__ import annotations

import time

import pytest

from router.planning.costs import PassCosts
from router.planning.fixed import FixedPlanner
from router.planning.round_plan import CONTROL, RoundPlan
from router.rounds import Round, RoundWatch
from router.stats import RoundStats
from tests.router.replies import verdict


def learnt_pass_ms(replica_after: str) -> float:
    """What is known of a pass after a second round, which goes from "a" to this replica."""
    costs, replica = PassCosts(), ["a"]
    watch = RoundWatch(RoundStats(), costs, FixedPlanner(1, run_on=0), lambda: replica[0])
    asked = Round(plan=RoundPlan(0, 0), planned_at=time.perf_counter())
    watch.note_asked()
    watch.note_verdict(asked, verdict())
    assert costs.pass_ms(1) == 0.0, "it read the prompt"
    watch.note_asked()
    replica[0] = replica_after
    watch.note_verdict(asked, verdict())
    return costs.pass_ms(1)


def test_a_round_that_found_another_replica_says_nothing_of_passes() -> None:
    assert learnt_pass_ms("a") == 1.0
    assert learnt_pass_ms("b") == 0.0


class Observer(FixedPlanner):
    """Keeps what it is told of rounds."""

    def __init__(self) -> None:
        super().__init__(0, run_on=4)
        self.seen: list[tuple[int, float]] = []
        self.left_after = 0  # tokens

    def observe_round(self, plan: RoundPlan, num_tokens: int, elapsed_ms: float) -> None:
        self.seen.append((num_tokens, elapsed_ms))

    def leave(self, num_tokens: int = 0) -> None:
        self.left_after = num_tokens


@pytest.mark.parametrize(("draft", "seen"), [((), [3]), ((7,), [])])
def test_behind_a_prompt_the_plain_steps_are_a_round_of_their_own(
    draft: tuple[int, ...], seen: list[int]
) -> None:
    """A short text is one round, and plain decoding would never be measured."""
    planner = Observer()
    watch = RoundWatch(RoundStats(), PassCosts(), planner)
    asked = Round(plan=RoundPlan(len(draft), 3), planned_at=time.perf_counter() - 60.0, draft=draft)
    watch.note_asked()
    for part in range(4):
        watch.note_verdict(asked, verdict(part=part))
    watch.end_round()
    assert [num_tokens for num_tokens, _ in planner.seen] == seen
    assert all(elapsed_ms < 30_000.0 for _, elapsed_ms in planner.seen), "the prompt took a minute"
    watch.note_asked()
    watch.note_verdict(asked, verdict())
    watch.end_round()
    assert planner.seen[-1][0] == 1
    assert planner.seen[-1][1] > 30_000.0, "from when it was planned"


@pytest.mark.parametrize(
    ("run_on", "num_gathering", "seen"),
    [(8, 0, 8), (8, 2, 7), (8, 6, 0), (8, 9, 0), (2, 0, 2), (2, 2, 0), (0, 0, 1)],
)
def test_a_control_round_counts_from_where_all_make_it(
    run_on: int, num_gathering: int, seen: int
) -> None:
    """Its first step, and those beside drafts of others, say little of plain decoding."""
    planner = Observer()
    watch = RoundWatch(RoundStats(), PassCosts(), planner)
    watch.note_asked()
    watch.note_verdict(Round(plan=RoundPlan(0, 0), planned_at=0.0), verdict())
    watch.end_round()
    planner.seen.clear()
    planned_at = time.perf_counter() - 3600.0 * (run_on > 0)
    control = Round(plan=RoundPlan(0, run_on, reason=CONTROL), planned_at=planned_at)
    watch.note_asked()
    for part in range(1 + run_on):
        planner.is_gathering = part < num_gathering
        watch.note_verdict(control, verdict(part=part))
    watch.end_round()
    assert [num_tokens for num_tokens, _ in planner.seen] == [seen] * (seen > 0)
    assert all(elapsed_ms < 60_000.0 for _, elapsed_ms in planner.seen)
