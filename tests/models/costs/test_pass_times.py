"""What an engine knows of its passes: what they take, and what the last one may have delayed."""

from __future__ import annotations

import pytest

from models.costs.pass_times import PassTimes
from models.costs.running_mean import running_mean


def test_nothing_is_known_before_the_first_pass() -> None:
    times = PassTimes()
    assert times.mean_s is None
    assert times.by_rows.is_empty
    assert not times.may_have_delayed(0.0)


def test_a_message_that_is_found_when_a_pass_ends_may_have_come_while_it_ran() -> None:
    times = PassTimes()
    times.note(4, 0.020, 1.0)
    assert (times.last_began_s, times.last_ended_s) == (0.98, 1.0)
    assert times.may_have_delayed(1.001)
    assert not times.may_have_delayed(1.010)


def test_a_pass_counts_by_its_rows_and_in_the_mean_of_all() -> None:
    times = PassTimes()
    times.note(1, 0.010, 1.0)
    times.note(8, 0.020, 2.0)
    assert times.by_rows.at(1) == pytest.approx(0.010)
    assert times.by_rows.at(8) == pytest.approx(0.020)
    assert times.mean_s == pytest.approx(0.012)


def test_a_pass_too_short_for_the_clock_is_no_measurement() -> None:
    times = PassTimes()
    times.note(1, 0.0, 1.0)
    assert times.by_rows.is_empty
    assert times.mean_s == 0.0


def test_a_running_mean_begins_with_the_first_value() -> None:
    assert running_mean(None, 5.0, 0.1) == 5.0
    assert running_mean(5.0, 10.0, 0.1) == pytest.approx(5.5)
