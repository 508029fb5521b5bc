"""What rounds take beyond what engines do, fitted to rounds as they happened."""

from __future__ import annotations

import pytest

from router.planning.measured import Lateness, Overheads


def test_nothing_is_known_before_a_round() -> None:
    assert Overheads().of(4, 3) == 0.0


def test_the_nearest_number_of_sessions_answers() -> None:
    overheads = Overheads()
    overheads.observe(1, 3, 0.5)
    overheads.observe(8, 3, 4.0)
    assert [overheads.of(number, 1) for number in (1, 3, 6, 8, 100)] == [0.5, 0.5, 4.0, 4.0, 4.0]


def test_rounds_that_waited_for_a_prompt_do_not_count() -> None:
    overheads = Overheads()
    for turn in range(32):
        overheads.observe(4, 3, 500.0 if turn % 8 == 0 else 2.0)
    assert overheads.of(4, 3) == pytest.approx(2.0)


def test_rounds_of_two_kinds_count_by_their_share() -> None:
    """Where every other draft comes back empty, a round is worth something between."""
    overheads = Overheads()
    for turn in range(32):
        overheads.observe(4, 3, (1.0, 5.0)[turn % 2])
    assert overheads.of(4, 3) == pytest.approx(3.0)


def test_old_rounds_are_forgotten() -> None:
    overheads = Overheads()
    for overhead_ms in (-1.0, 7.0):
        for _ in range(40):
            overheads.observe(2, 3, overhead_ms)
    assert overheads.of(2, 3) == pytest.approx(7.0)


def test_each_depth_has_its_own_and_the_nearest_answers() -> None:
    overheads = Overheads()
    overheads.observe(4, 2, 1.0)
    overheads.observe(4, 6, 3.0)
    assert [overheads.of(4, depth) for depth in (1, 2, 3, 5, 6, 8)] == [1, 1, 1, 3, 3, 3]


def test_what_a_round_takes_is_the_mean_of_the_middle_half() -> None:
    overheads = Overheads()
    for overhead_ms in (1.0, 2.0, 3.0, 10.0):
        overheads.observe(4, 3, overhead_ms)
    assert overheads.of(4, 3) == pytest.approx(2.5)


def test_rounds_that_end_late_count_until_they_are_long_ago() -> None:
    lateness = Lateness()
    assert lateness.factor == 1.0
    for second in range(10):
        lateness.observe(1000.0, 1500.0, float(second))
    assert 1.45 < lateness.factor < 1.5
    lateness.observe(0.0, 0.0, 200.0)
    assert lateness.factor == pytest.approx(1.0, abs=1e-2)
