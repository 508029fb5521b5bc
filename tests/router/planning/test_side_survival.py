"""What a token beside a draft must survive with, by what rows of side paths take."""

from __future__ import annotations

import math

import pytest

from models.protocol.messages import Timing, Verdict
from router.planning.costs import PassCosts
from router.planning.exploring import side_survival
from router.planning.fixed import FixedPlanner
from router.planning.joint import JointPlan
from router.planning.round_plan import RoundPlan
from router.rounds import Round, RoundWatch
from router.stats import RoundStats


def costs_of(row_ms: float = 1.0) -> PassCosts:
    """Passes of 10 ms and `row_ms` a row."""
    costs = PassCosts()
    for num_rows in range(1, 20):
        costs.observe_pass(num_rows, 10.0 + row_ms * num_rows)
    return costs


def plan_of(*, tokens_per_ms: float = 0.1, min_survival: float = 0.05) -> JointPlan:
    return JointPlan((4,), 4, 15.0, 1.0, tokens_per_ms, 3.0, min_survival)


def test_before_any_was_measured_it_takes_two_rows() -> None:
    assert side_survival(plan_of(), costs_of(), 2) == pytest.approx(0.1 * 2.0)
    assert side_survival(plan_of(), costs_of(row_ms=0.0), 2) == 0.05, "what any row must bring"


def test_then_it_is_what_they_took_lately() -> None:
    costs = costs_of()
    for turn in range(30):
        # 5 rows and 4 beside them: 15 ms and 12 more; one pass in ten takes as long again.
        assert costs.observe_side_rows(9, 4, (27.0 + 1e-6 * turn) * (2 if turn % 10 == 0 else 1))
    assert costs.side_row_ms(5) == pytest.approx(3.0, abs=1e-3)
    assert side_survival(plan_of(), costs, 2) == pytest.approx(0.3, abs=1e-3)
    dear = plan_of(tokens_per_ms=0.4)
    assert side_survival(dear, costs, 2) > 1.0, "none survives with that: drafts are chains"
    assert costs.pass_ms(9) == 19.0, "they are no measure of passes without them"
    for turn in range(30):
        costs.observe_side_rows(9, 4, 15.0 + 1e-6 * turn)
    assert costs.side_row_ms(5) == pytest.approx(0.0, abs=1e-3)


def test_each_session_of_a_pass_reports_it_and_it_counts_once() -> None:
    costs = costs_of()
    assert [costs.observe_side_rows(9, 4, 27.0) for _ in range(3)] == [True, False, False]
    assert not costs.observe_side_rows(9, 4, 0.0)


def test_where_nothing_else_was_measured_they_are_rows_like_any() -> None:
    costs = PassCosts()
    assert costs.observe_side_rows(9, 4, 27.0)
    assert costs.pass_ms(9) == 27.0


def test_some_rounds_are_there_to_learn() -> None:
    plan, costs = plan_of(), costs_of()
    assert side_survival(None, costs, 2) == math.inf
    found = [side_survival(plan, costs, number) for number in range(128)]
    usual = found[2]
    assert [number for number, one in enumerate(found) if one == math.inf] == [*range(0, 128, 16)]
    assert [number for number, one in enumerate(found) if one < usual] == [1, 65]
    assert found[1] == pytest.approx(usual / 2)


class Seen(FixedPlanner):
    """Notes the passes that it is told of."""

    def __init__(self) -> None:
        super().__init__(4, 0)
        self.timings: list[Timing] = []

    def observe_pass(self, timing: Timing) -> None:
        self.timings.append(timing)


@pytest.mark.parametrize(
    ("num_own_drafted", "pass_ms", "num_rows"),
    [(0, 19.0, 5), (6, 26.3, 9)],
    ids=["beside a draft of ours", "of the target's own"],
)
def test_a_round_tells_costs_and_planner_apart(
    num_own_drafted: int, pass_ms: float, num_rows: int
) -> None:
    costs, planner = costs_of(), Seen()
    watch = RoundWatch(RoundStats(), costs, planner)
    asked = Round(plan=RoundPlan(4, 0), planned_at=0.0)
    for turn in range(12):
        timing = Timing(pass_ms=27.0 + 1e-6 * turn, num_rows=9, num_side_rows=4, num_sessions=1)
        watch.note_asked()
        watch.note_verdict(
            asked,
            Verdict(
                session_id="s",
                seq=turn,
                part=0,
                num_accepted=0,
                token=1,
                is_last=True,
                timing=timing,
                num_own_drafted=num_own_drafted,
            ),
        )
    assert costs.pass_ms(9) == pytest.approx(pass_ms, abs=0.1)
    assert {timing.num_rows for timing in planner.timings} == {num_rows}
