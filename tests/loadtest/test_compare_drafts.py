"""Draft models compared on the same answers: the statistics, and a run that finds the worse one."""

from __future__ import annotations

import random

import pytest

from loadtest.compare_drafts import Compared, Report, difference, interval


def report(better_by: float, count: int) -> Report:
    """Answers on which the first brings so much more; what is foretold is what comes, but noise."""
    rng = random.Random(0)
    answers = []
    for number in range(count):
        base = 1.0 + 3.0 * rng.random()
        foretold = {"one": base + better_by + rng.gauss(0.0, 0.2), "two": base}
        drafter = ("one", "two")[number % 2]
        real = foretold[drafter] + rng.gauss(0.0, 0.1)
        answers.append(Compared(drafter, foretold, real, 10.0 if drafter == "one" else 20.0))
    return Report(drafts=["one", "two"], k=3, answers=answers)


def test_an_interval_holds_the_mean_and_says_whether_it_is_none() -> None:
    found = interval([1.0, 2.0, 3.0, 2.0] * 20)
    assert found.low < found.mean == 2.0 < found.high
    assert found.is_decided
    assert not interval([-1.0, 1.0] * 40).is_decided
    apart = difference([3.0, 3.5] * 20, [1.0, 1.5] * 20)
    assert apart.mean == 2.0
    assert apart.is_decided


def test_pairs_decide_long_before_a_split() -> None:
    found = report(0.2, 100)
    assert found.paired.is_decided
    assert found.paired.mean == pytest.approx(0.2, abs=0.1)
    paired, split = (each.high - each.low for each in (found.paired, found.split))
    assert split > 4 * paired  # so it would need 16 times as many answers
    assert found.num_needed is not None
    assert found.num_needed <= 80
    assert all(claim.is_met for claim in found.claims)
    assert found.tokens_per_s("one") > 1.9 * found.tokens_per_s("two")


def test_equal_ones_are_not_told_apart() -> None:
    found = report(0.0, 60)
    assert found.num_needed is None
    assert [claim.is_met for claim in found.claims] == [False, True, True]
    assert "not decided" in "".join(found.lines())


def test_what_was_foretold_wrongly_is_seen() -> None:
    found = report(0.2, 60)
    found.answers = [
        Compared(one.drafter, one.foretold, one.real + 0.5, one.round_ms) for one in found.answers
    ]
    assert [claim.is_met for claim in found.claims] == [True, False, False]
