"""Shares, intervals and what texts of a question say."""

from __future__ import annotations

import pytest
from scipy import stats

from loadtest.same.counts import Share, excess_chance, fate_of
from loadtest.same.plan import SideName, Way
from loadtest.same.sides import Reading


@pytest.mark.parametrize(("num_differing", "num_compared"), [(0, 10), (1, 3), (5, 10), (48, 48)])
def test_intervals_are_wilsons(num_differing: int, num_compared: int) -> None:
    share = Share(num_differing=num_differing, num_compared=num_compared)
    known = stats.binomtest(num_differing, num_compared).proportion_ci(method="wilson")
    assert share.interval == pytest.approx((known.low, known.high), abs=1e-6)


def test_no_questions_say_nothing() -> None:
    assert Share(num_differing=0, num_compared=0).interval == (0.0, 1.0)


@pytest.mark.parametrize(("between_only", "floor_only"), [(0, 0), (3, 0), (9, 1), (5, 5), (1, 9)])
def test_the_excess_over_the_floor_is_an_exact_sign_test(
    between_only: int, floor_only: int
) -> None:
    num = between_only + floor_only
    known = 1.0 if not num else stats.binomtest(between_only, num, alternative="greater").pvalue
    assert excess_chance(between_only, floor_only) == pytest.approx(known)


def reading(text: str, *, problem: str = "", end: str = "stop") -> Reading:
    return Reading(text=text, finish_reason=end, num_tokens=1, num_tries=1, problem=problem)


def asked(side: SideName, run: int, read: Reading) -> tuple[Way, Reading]:
    return Way(side=side, delivery="stream", concurrency=1, run=run), read


@pytest.mark.parametrize(
    ("of_a", "of_b", "fate"),
    [
        (["x", "x"], ["x", "x"], "same"),
        (["x", "x"], ["y", "y"], "differs"),
        (["x", "x"], ["x", "y"], "unsteady"),
        (["x", "y"], ["z", "z"], "unsteady"),
        (["x", ""], ["x", "x"], "unanswered"),
        (["x", ""], ["y", "y"], "differs"),
        (["", ""], ["", ""], "unanswered"),
    ],
)
def test_the_fate_of_a_question(of_a: list[str], of_b: list[str], fate: str) -> None:
    sides: list[tuple[SideName, list[str]]] = [("A", of_a), ("B", of_b)]
    ways = [
        asked(side, run, reading(text, problem="" if text else "lost"))
        for side, texts in sides
        for run, text in enumerate(texts)
    ]
    assert fate_of(ways) == fate


def test_another_end_makes_another_answer() -> None:
    ways = [asked("A", 1, reading("x")), asked("B", 1, reading("x", end="length"))]
    assert fate_of(ways) == "differs"
