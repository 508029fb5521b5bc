"""How long the target's own drafts are: by what is accepted and what rounds take."""

from __future__ import annotations

import random
from collections.abc import Callable

from models.costs.pass_times import PassTimes
from models.engine.drafting.lengths import DraftLengths

LONGEST = 3


def lengths_with(rates: list[float], round_s: Callable[[int], float] | None) -> DraftLengths:
    """For one session: tokens that are right so often, and rounds that take so long by length."""
    times = PassTimes()
    for rows in (1, 2, 3, 4):
        times.note(rows, 1.0 + 0.01 * rows, 0.0)
    lengths = DraftLengths(LONGEST, times)
    generator = random.Random(1)
    for _ in range(2000):
        is_right = [generator.random() < rate for rate in rates]
        lengths.note(LONGEST, [*is_right, False].index(False))
    for length in range(LONGEST + 1 if round_s else 0):
        for _ in range(2):
            assert round_s is not None
            lengths.note_round(1, length, round_s(length))
    return lengths


def test_drafts_are_as_long_as_pays() -> None:
    good = [0.9, 0.9, 0.9]
    assert lengths_with(good, None).choose(1) == LONGEST, "by what passes take"
    assert lengths_with([0.8, 0.05, 0.9], lambda num: 1.0 + 0.1 * num).choose(1) == 1
    assert lengths_with(good, lambda num: 1.0 + 2.0 * (num > 0)).choose(1) == LONGEST
    assert lengths_with(good, lambda num: 1.0 + 3.0 * (num > 0)).choose(1) == 0


def test_what_drafting_takes_counts_until_rounds_are_measured() -> None:
    lengths = lengths_with([0.9, 0.9, 0.9], None)
    lengths.note_drafting(2, 6.0)
    assert lengths.choose(1) == 0
    for _ in range(2):
        for length in range(LONGEST + 1):
            lengths.note_round(1, length, 1.0)
    assert lengths.choose(1) == LONGEST


def test_now_and_then_each_other_length_that_may_pay_is_tried() -> None:
    lengths = lengths_with([0.5, 0.5, 0.05], lambda num: 1.0 + 0.5 * num)
    found = [lengths.choose(1) for _ in range(66 * 8)]
    assert [found.count(num) for num in range(LONGEST + 1)] == [63 * 8, 3 * 4, 3 * 4, 0]
    assert "2, 2, 2" in str(found), "three times in a row"


def test_a_token_is_tried_now_and_then_though_nothing_pays() -> None:
    lengths = lengths_with([0.05, 0.9, 0.9], lambda num: 1.0 + num)
    found = [lengths.choose(1) for _ in range(258 * 2)]
    assert [found.count(num) for num in range(LONGEST + 1)] == [255 * 2, 3 * 2, 0, 0]


def test_what_pays_clearly_is_never_left() -> None:
    lengths = lengths_with([0.9, 0.9, 0.9], lambda num: 1.0 + 0.01 * num)
    assert {lengths.choose(1) for _ in range(1000)} == {LONGEST}
