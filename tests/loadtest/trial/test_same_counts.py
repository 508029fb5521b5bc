"""What texts of a question say, and the excess of differences over the floor."""

from __future__ import annotations

import pytest
from scipy import stats

from loadtest.client.answers import Answer
from loadtest.experiments.same_texts import Asked, excess_chance, fate_of


@pytest.mark.parametrize(("between_only", "floor_only"), [(0, 0), (3, 0), (9, 1), (5, 5), (1, 9)])
def test_the_excess_over_the_floor_is_an_exact_sign_test(
    between_only: int, floor_only: int
) -> None:
    num = between_only + floor_only
    known = 1.0 if not num else stats.binomtest(between_only, num, alternative="greater").pvalue
    assert excess_chance(between_only, floor_only) == pytest.approx(known)


def reading(text: str, *, problem: str = "", end: str = "stop") -> Answer:
    return Answer(text=text, finish_reason=end, is_done=True, error=problem)


def asked(side: str, run: int, read: Answer) -> tuple[Asked, Answer]:
    return Asked(side=side, delivery="stream", crowd=1, run=run), read


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
    sides = [("A", of_a), ("B", of_b)]
    ways = [
        asked(side, run, reading(text, problem="" if text else "lost"))
        for side, texts in sides
        for run, text in enumerate(texts)
    ]
    assert fate_of(ways) == fate


def test_another_end_makes_another_answer() -> None:
    ways = [asked("A", 1, reading("x")), asked("B", 1, reading("x", end="length"))]
    assert fate_of(ways) == "differs"
