"""The forming window as a function of given times."""

import pytest

from models.forming import FormingWindow


def window_after(link_s: float, pass_s: float) -> FormingWindow:
    """A window that has seen one answer come back, with a steady link and pass."""
    window = FormingWindow()
    window.note_pass(pass_s)
    window.note_answer("a", 0.0)
    window.note_message("a", link_s)
    return window


def test_it_waits_for_who_was_answered_and_stops_when_all_are_in() -> None:
    window = window_after(0.0003, 0.020)
    window.note_answer("a", 1.0)
    window.note_answer("b", 1.0)
    assert window.wait_s(1.0) == pytest.approx(0.0006)
    window.note_message("a", 1.0002)
    assert window.wait_s(1.0002) > 0.0003
    window.note_message("b", 1.0003)
    assert window.wait_s(1.0003) == 0.0


def test_it_waits_at_most_a_share_of_a_pass() -> None:
    window = window_after(0.0008, 0.020)
    window.note_answer("a", 1.0)
    assert window.wait_s(1.0) == pytest.approx(0.001)


def test_it_does_not_wait_for_who_cannot_be_back_in_time() -> None:
    window = window_after(0.010, 0.020)
    window.note_answer("a", 1.0)
    assert window.wait_s(1.0) == 0.0


def test_who_misses_the_window_is_not_waited_for_again() -> None:
    window = window_after(0.0003, 0.020)
    window.note_answer("a", 1.0)
    assert window.wait_s(1.1) == 0.0
    assert window.wait_s(1.0) == 0.0


def test_who_misses_the_window_still_tells_how_long_it_takes() -> None:
    window = window_after(0.0003, 0.020)
    for i in range(1, 30):
        window.note_answer("a", float(i))
        window.wait_s(i + 0.005)
        window.note_message("a", i + 0.010)
    window.note_answer("a", 50.0)
    assert window.wait_s(50.0) == 0.0


def test_nothing_is_known_at_first() -> None:
    window = FormingWindow()
    window.note_answer("a", 1.0)
    assert window.wait_s(1.0) == 0.0


def test_who_is_gone_is_not_waited_for() -> None:
    window = window_after(0.0003, 0.020)
    window.note_answer("a", 1.0)
    window.forget("a")
    window.forget("never seen")
    assert window.wait_s(1.0) == 0.0


def test_a_slow_client_counts_as_a_clipped_link_time() -> None:
    window = window_after(60.0, 20.0)
    window.note_answer("a", 100.0)
    assert window.wait_s(100.0) == pytest.approx(0.1)
