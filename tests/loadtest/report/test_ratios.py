"""Ratios by turns on known numbers: what is compared with what, and how wide intervals are."""

from __future__ import annotations

import random

import pytest

from loadtest.report.ratios import Estimate, difference_of, rates_of_best, ratio_of, ratio_of_totals


def test_a_ratio_is_taken_within_a_turn() -> None:
    # The machine is ten times slower in the second turn; both lines suffer, and nothing is left.
    estimate = ratio_of([20.0, 2.0, 40.0], [10.0, 1.0, 20.0])
    assert (estimate.value, estimate.low, estimate.high) == (2.0, 2.0, 2.0)


def test_the_interval_spans_turns_that_differ() -> None:
    estimate = ratio_of([1.0, 1.1, 0.9, 1.2, 0.8], [1.0] * 5)
    assert estimate.value == 1.0
    assert 0.8 <= estimate.low < 1.0 < estimate.high <= 1.2


def test_the_interval_holds_the_truth_about_as_often_as_it_says() -> None:
    noise = random.Random(3)
    held = 0
    for seed in range(100):
        turns = [(1.1 * noise.lognormvariate(0, 0.05), 1.0) for _ in range(12)]
        estimate = ratio_of([a for a, _ in turns], [b for _, b in turns], seed=seed)
        held += estimate.low <= 1.1 <= estimate.high
    assert 85 <= held <= 100


def test_a_difference_is_taken_within_a_turn_too() -> None:
    estimate = difference_of([24.0, 69.0, 26.0], [5.0, 50.0, 5.0])
    assert estimate.value == 19.0
    assert 19.0 <= estimate.low <= estimate.high <= 21.0


def to_best(line: list[float], others: dict[str, list[float]], seed: int = 0) -> Estimate:
    rates = rates_of_best(others)
    assert rates is not None
    return ratio_of(line, rates, seed)


def test_each_half_picks_the_best_for_the_other() -> None:
    # By even turns (0, 2) "b" is best, by odd turns (1, 3) "a" is.
    others = {"a": [1.0, 4.0, 1.0, 4.0], "b": [2.0, 1.0, 2.0, 1.0]}
    # Even turns are compared with "a", and odd turns with "b".
    assert rates_of_best(others) == [1.0, 1.0, 1.0, 1.0]
    assert rates_of_best({"a": others["a"]}) == others["a"]


def test_a_best_by_chance_is_not_compared_where_it_was_picked() -> None:
    # Twenty lines that are all as fast as the line: the best of them by chance would win by far.
    noise = random.Random(5)
    shortfalls = []
    for seed in range(30):
        rates = {str(i): [noise.lognormvariate(0, 0.1) for _ in range(6)] for i in range(20)}
        line = [noise.lognormvariate(0, 0.1) for _ in range(6)]
        shortfalls.append(to_best(line, rates, seed).value)
    assert sum(shortfalls) / len(shortfalls) == pytest.approx(1.0, abs=0.04)


def test_the_true_best_is_found_and_the_interval_is_around_the_ratio() -> None:
    noise = random.Random(1)
    speed = {"k=0": 1.0, "k=3": 1.5, "k=5": 1.3}
    others = {
        name: [rate * noise.uniform(0.97, 1.03) for _ in range(6)] for name, rate in speed.items()
    }
    found = to_best([1.2 * noise.uniform(0.97, 1.03) for _ in range(6)], others)
    assert rates_of_best(others) == others["k=3"]
    assert found.low < found.value < found.high
    assert found.value == pytest.approx(0.8, abs=0.04)


def test_two_turns_have_an_interval_too() -> None:
    ratio = to_best([0.9, 1.1], {"a": [1.0, 1.0], "b": [0.5, 0.5]})
    assert (ratio.low, ratio.value, ratio.high) == pytest.approx((0.9, 1.0, 1.1))


def test_one_turn_picks_nothing() -> None:
    assert rates_of_best({"a": [1.0], "b": [2.0]}) is None


def test_lines_of_other_lengths_have_no_ratio() -> None:
    with pytest.raises(ValueError, match="same turns"):
        ratio_of([1.0], [1.0, 2.0])


def test_a_ratio_of_totals_weighs_questions_by_their_size() -> None:
    # One long question at 3 passes a token among short ones at 1, over 1 everywhere.
    above = [(300.0, 100.0), (1.0, 1.0), (1.0, 1.0)]
    below = [(100.0, 100.0), (1.0, 1.0), (1.0, 1.0)]
    found = ratio_of_totals(above, below)
    assert found.value == pytest.approx(302 / 102)
    assert found.low == 1.0  # the long one was not drawn
    assert found.high == pytest.approx(3.0, abs=0.02)


def test_a_ratio_of_totals_needs_the_same_questions() -> None:
    with pytest.raises(ValueError, match="the same questions, got 1 and 2"):
        ratio_of_totals([(1.0, 1.0)], [(1.0, 1.0), (1.0, 1.0)])
