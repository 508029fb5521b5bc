import random

from models.backoff import Backoff


def even() -> float:
    return 0.5


def test_pauses_double_up_to_a_limit() -> None:
    backoff = Backoff(0.5, 4.0, even)
    assert backoff.pause_s == 0.0  # the first attempt follows at once
    pauses = []
    for _ in range(6):
        backoff.note_failure()
        pauses.append(backoff.pause_s)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert backoff.num_failures == 6


def test_begins_anew_after_a_success() -> None:
    backoff = Backoff(0.5, 4.0, even)
    backoff.note_failure()
    backoff.note_failure()
    backoff.reset()
    assert (backoff.pause_s, backoff.num_failures) == (0.0, 0)
    backoff.note_failure()
    assert backoff.pause_s == 0.5


def test_no_pause_is_longer_than_the_longest_nor_than_none_at_all() -> None:
    short = Backoff(3.0, 2.0, even)
    none = Backoff(0.0, 4.0, even)
    for _ in range(5000):  # more failures than a float has binary digits
        short.note_failure()
        none.note_failure()
    assert (short.pause_s, none.pause_s, none.num_failures) == (2.0, 0.0, 5000)


def test_processes_that_fail_together_come_back_apart() -> None:
    chance = random.Random(7).random
    seconds = []
    for _ in range(200):
        backoff = Backoff(1.0, 8.0, chance)
        for _ in range(3):
            backoff.note_failure()
        seconds.append(backoff.pause_s)
    assert 3.2 <= min(seconds) < 3.4
    assert 4.6 < max(seconds) <= 4.8
    assert len(set(seconds)) == 200
    again = random.Random(7).random
    backoff = Backoff(1.0, 8.0, again)
    for _ in range(3):
        backoff.note_failure()
    assert backoff.pause_s == seconds[0]
