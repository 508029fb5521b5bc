"""What rounds take beyond what engines do: of whole rounds, by what is known of engines now."""

from __future__ import annotations

import pytest

from router.planning.costs import RoundCosts
from router.planning.joint import Others, Work
from router.planning.overhead import Belief, Overhead, Past

ALONE = Others()


def costs(base_ms: float = 20.0, row_ms: float = 1.0, step_ms: float = 2.0) -> RoundCosts:
    return RoundCosts(
        pass_ms=lambda num_rows: base_ms + row_ms * num_rows,
        draft_ms=lambda depth, num_sessions: depth * step_ms,
    )


def work(num_sessions: int, depth: int) -> Work:
    return Work(num_sessions, num_sessions * depth, num_sessions, depth)


def engine_ms(num_sessions: int, depth: int) -> float:
    return 20.0 + num_sessions * (1 + depth) + 2.0 * depth


def observed(num_sessions: int, depth: int, overhead_ms: float, times: int = 100) -> Overhead:
    overhead = Overhead(Belief())
    for _ in range(times):
        overhead.observe(
            engine_ms(num_sessions, depth) + overhead_ms, work(num_sessions, depth), 0.0
        )
    return overhead


def test_nothing_is_known_before_a_round() -> None:
    assert Overhead(Belief()).of(4, costs(), ALONE, 0.0) == 0.0


@pytest.mark.parametrize("times", [1, 100])
def test_more_sessions_are_expected_to_take_as_much_more(times: int) -> None:
    overhead = observed(4, 3, 2.0, times)
    assert overhead.of(4, costs(), ALONE, 0.0) == pytest.approx(2.0)
    assert overhead.of(8, costs(), ALONE, 0.0) == pytest.approx(4.0)


def test_rounds_of_two_kinds_count_by_their_share() -> None:
    overhead = Overhead(Belief())
    for turn in range(1000):
        overhead.observe(engine_ms(4, 3) + (1.0 if turn % 2 else 5.0), work(4, 3), 0.0)
    assert overhead.of(4, costs(), ALONE, 0.0) == pytest.approx(3.0, rel=0.02)


def test_it_may_be_negative_and_old_rounds_are_forgotten() -> None:
    overhead = observed(2, 3, -1.0)
    assert overhead.of(2, costs(), ALONE, 0.0) == pytest.approx(-1.0)
    for _ in range(1000):
        overhead.observe(engine_ms(2, 3) + 7.0, work(2, 3), 0.0)
    assert overhead.of(2, costs(), ALONE, 0.0) == pytest.approx(7.0)


def test_what_engines_take_is_taken_off_as_it_is_known_now() -> None:
    """A first pass is slow, and its time is that of all until others are measured."""
    overhead = observed(1, 0, 0.5)
    assert overhead.of(1, costs(), ALONE, 0.0) == pytest.approx(0.5)
    assert overhead.of(1, costs(base_ms=15.0), ALONE, 0.0) == pytest.approx(5.5)


def test_it_is_believed_less_until_a_round_comes() -> None:
    overhead = observed(4, 3, 10.0)
    assert overhead.of(4, costs(), ALONE, 100.0) < 0.5
    overhead.observe(engine_ms(4, 3) + 10.0, work(4, 3), 100.0)
    assert overhead.of(4, costs(), ALONE, 100.0) == pytest.approx(10.0)


@pytest.mark.parametrize("measured_ms", [10.0, 1.0])
def test_as_much_as_usual_is_expected_where_nothing_is_known_any_more(measured_ms: float) -> None:
    assert Overhead(Belief()).of(4, costs(), ALONE, 0.0, usual_ms=3.0) == 3.0
    overhead = observed(4, 3, measured_ms)
    assert overhead.of(4, costs(), ALONE, 0.0, usual_ms=3.0) == pytest.approx(measured_ms)
    assert overhead.of(4, costs(), ALONE, 1000.0, usual_ms=3.0) == pytest.approx(3.0)


def believed_after(*uses_s: float) -> float:
    """Return what is believed of 10 ms, after uses of so many seconds and 10 s without."""
    past, now_s = Past(), 0.0
    for lasted_s in uses_s:
        past.begin_use(now_s)
        now_s += lasted_s
        past.end_use(now_s)
    past.rounds.observe(engine_ms(4, 3) + 10.0, work(4, 3), now_s)
    return past.rounds.of(4, costs(), ALONE, now_s + 10.0)


def test_a_mode_that_was_tried_in_vain_is_believed_to_be_slow_for_longer() -> None:
    once, twice, often = believed_after(1.0), believed_after(1.0, 1.0), believed_after(*[1.0] * 9)
    assert believed_after() == pytest.approx(5.0)
    assert 5.0 < once < twice < often < 10.0
    assert often == pytest.approx(believed_after(*[1.0] * 99)), "it is tried again some day"
    assert believed_after(*[1.0] * 9, 60.0) == pytest.approx(5.0), "it paid for a while"
