"""What rounds take beyond what engines do, fitted to rounds as they happened."""

from __future__ import annotations

import pytest

from router.planning.measured import Lateness, Overheads


def observed(*rounds: tuple[int, int, float], times: int = 100) -> Overheads:
    overheads = Overheads()
    for _ in range(times):
        for num_sessions, depth, overhead_ms in rounds:
            overheads.observe(num_sessions, depth, overhead_ms)
    return overheads


def test_nothing_is_known_before_a_round() -> None:
    assert Overheads().of(4)(3) == 0.0


def test_a_single_round_says_about_as_much_of_its_neighbours() -> None:
    overheads = observed((4, 3, 2.0), times=1)
    assert overheads.of(4)(3) == pytest.approx(2.0, rel=0.02)
    assert 1.0 < overheads.of(2)(1) < overheads.of(4)(3) < overheads.of(4)(8) < 3.0


def test_sessions_and_steps_are_told_apart() -> None:
    true = {(n, d): 0.5 + 0.1 * n + 0.05 * n * d for n in (1, 4, 8) for d in (1, 3, 8)}
    overheads = observed(*((n, d, ms) for (n, d), ms in true.items()))
    for (num_sessions, depth), overhead_ms in true.items():
        assert overheads.of(num_sessions)(depth) == pytest.approx(overhead_ms, abs=0.45)
    assert overheads.of(6)(5) == pytest.approx(0.5 + 0.6 + 1.5, rel=0.15)


def test_rounds_that_waited_for_a_prompt_count_as_twice_as_long_at_most() -> None:
    overheads = observed((4, 3, 2.0))
    for turn in range(80):
        overheads.observe(4, 3, 500.0 if turn % 8 == 0 else 2.0, 6.0)
    assert 2.0 < overheads.of(4)(3) < 2.6


def test_nothing_is_odd_before_anything_is_known() -> None:
    overheads = Overheads()
    overheads.observe(4, 3, 50.0, 6.0)
    assert overheads.of(4)(3) == pytest.approx(50.0, rel=0.02)


def test_rounds_of_two_kinds_count_by_their_share() -> None:
    """Where every other draft comes back empty, a round is worth something between."""
    overheads = observed((4, 3, 1.0), (4, 3, 5.0))
    assert overheads.of(4)(3) == pytest.approx(3.0, rel=0.02)


def test_overheads_may_be_negative_and_old_ones_are_forgotten() -> None:
    overheads = observed((2, 3, -1.0))
    assert overheads.of(2)(3) == pytest.approx(-1.0, rel=0.02)
    for _ in range(1000):
        overheads.observe(2, 3, 7.0)
    assert overheads.of(2)(3) == pytest.approx(7.0, rel=0.02)


def test_rounds_that_end_late_count_until_they_are_long_ago() -> None:
    lateness = Lateness()
    assert lateness.factor == 1.0
    for second in range(10):
        lateness.observe(1000.0, 1500.0, float(second))
    assert 1.45 < lateness.factor < 1.5
    lateness.observe(0.0, 0.0, 200.0)
    assert lateness.factor == pytest.approx(1.0, abs=1e-2)


def test_what_is_forgotten_leaves_no_trace() -> None:
    """Weights are scaled now and then, and rounds of long ago go: nothing grows with time."""
    overheads = Overheads()
    for turn in range(20_000):
        overheads.observe(1 + turn % 50 if turn < 10_000 else 4, 3, 2.0)
    assert overheads.of(4)(3) == pytest.approx(2.0, rel=0.02)
    assert len(overheads._sums) < 5
