"""Claims are computed from rows: within a turn, for each cell, with the goal's relation."""

from __future__ import annotations

from typing import Any

import pytest

from loadtest.frame.claims import Goal, never_wrong, summary


def row(way: str, runs: list[float], *, batch: int = 1, measure: str = "tokens_per_s") -> Any:
    return {
        "stage": "engine",
        "workload": "story",
        "batch": batch,
        "way": way,
        "runs": {measure: runs},
    }


def test_a_ratio_is_taken_within_a_turn() -> None:
    rows = [row("fast", [20.0, 200.0, 20.0]), row("slow", [10.0, 100.0, 10.0])]
    [claim] = Goal(way="fast", to="slow", at_least=2.0).claims(rows)
    assert claim.value == pytest.approx(2.0)
    assert claim.is_met
    assert "batch 1" in claim.text


def test_a_difference_has_a_most() -> None:
    rows = [
        row("a", [24.0, 69.0, 24.0], measure="first_ms"),
        row("b", [5.0, 50.0, 5.0], measure="first_ms"),
    ]
    goal = Goal(way="a", to="b", measure="first_ms", by="difference", at_most=18.0)
    [claim] = goal.claims(rows)
    assert claim.value == pytest.approx(19.0)
    assert not claim.is_met


def test_the_best_of_others_is_picked_on_other_turns() -> None:
    rows = [
        row("adaptive", [9.0, 9.0, 9.0, 9.0]),
        row("k=0", [10.0, 1.0, 10.0, 1.0]),
        row("k=3", [5.0, 5.0, 5.0, 5.0]),
    ]
    to_best, to_plain = [claim for goal in never_wrong() for claim in goal.claims(rows)]
    # Even turns pick k=0 and odd ones k=3, so each is compared where it was not picked.
    assert to_best.value == pytest.approx((9 / 5 + 9 / 1) / 2)
    assert to_plain.value == pytest.approx((9 / 10 + 9 / 1) / 2)


def test_the_best_of_both_sides_is_picked_on_other_turns() -> None:
    rows = [
        row("k=3", [20.0, 11.0, 20.0, 11.0]),  # the best of even turns
        row("k=5", [15.0, 16.0, 15.0, 16.0]),
        row("theirs k=5", [10.0, 5.0, 10.0, 5.0]),
    ]
    goal = Goal(way="k=[1-9]*", to="theirs *", by="ratio to best", at_least=1.4)
    [claim] = goal.claims(rows)
    assert claim.value == pytest.approx((15 / 10 + 11 / 5) / 2)
    assert "k=[1-9]* / the best of theirs *" in claim.text
    for one in rows:
        one["runs"]["tokens_per_s"] = one["runs"]["tokens_per_s"][:1]
    assert not list(goal.claims(rows))  # two of ours, and no other turn that picks


def test_a_goal_may_be_for_the_measure_itself() -> None:
    rows = [row("1x6", [1.4, 1.2, 3.0], measure="to_products")]
    [claim] = Goal(way="1x6", measure="to_products", at_most=1.5).claims(rows)
    assert (claim.value, claim.interval) == (1.4, (1.2, 3.0))
    assert claim.text.endswith("to_products, 1x6")


def test_only_chosen_cells_and_those_with_both_ways_have_claims() -> None:
    rows = [row("a", [2.0], batch=1), row("b", [1.0], batch=1), row("a", [2.0], batch=8)]
    assert len(list(Goal(way="a", to="b", at_least=1.0).claims(rows))) == 1
    assert not list(Goal(way="a", to="b", at_least=1.0, only={"batch": 8}).claims(rows))


def test_a_tuple_names_several_cells_and_a_goal_may_wait_for_another() -> None:
    rows = [row("a", [1.3], batch=1), row("b", [1.0], batch=1), row("c", [2.0], batch=1)]
    rows += [row("a", [1.1], batch=8), row("b", [1.0], batch=8), row("c", [2.0], batch=8)]
    assert len(list(Goal(way="a", to="b", at_least=1.0, only={"batch": (1, 8)}).claims(rows))) == 2
    assert not list(Goal(way="a", to="b", at_least=1.0, only={"batch": (4, 16)}).claims(rows))
    gains_little = Goal(way="a", to="b", at_least=1.2)
    [claim] = Goal(way="c", to="b", at_least=1.5, unless=gains_little).claims(rows)
    assert "batch 8" in claim.text


def test_the_summary_counts_what_misses_over_all_cells() -> None:
    rows: list[Any] = []
    for batch, rate in ((1, 12.0), (4, 9.8), (8, 9.0)):
        rows += [
            row("adaptive", [rate] * 2, batch=batch),
            row("k=0", [10.0] * 2, batch=batch),
            row("k=3", [5.0] * 2, batch=batch),
        ]
    to_best, to_plain = summary(rows)
    assert to_best.startswith("adaptive / the best of k=* over 3 cells: median 0.98, worst 0.90 (")
    assert "engine, story, batch 8" in to_plain
    assert to_plain.endswith("1 below 0.97, 2 below 1")
    assert not list(summary([row("plain", [1.0])]))
