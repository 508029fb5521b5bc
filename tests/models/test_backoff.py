from models.backoff import Backoff


def test_pauses_double_up_to_a_limit() -> None:
    backoff = Backoff(0.5, 4.0)
    assert backoff.pause_s == 0.0  # the first attempt follows at once
    pauses = []
    for _ in range(6):
        backoff.note_failure()
        pauses.append(backoff.pause_s)
    assert pauses == [0.5, 1.0, 2.0, 4.0, 4.0, 4.0]
    assert backoff.num_failures == 6


def test_begins_anew_after_a_success() -> None:
    backoff = Backoff(0.5, 4.0)
    backoff.note_failure()
    backoff.note_failure()
    backoff.reset()
    assert (backoff.pause_s, backoff.num_failures) == (0.0, 0)
    backoff.note_failure()
    assert backoff.pause_s == 0.5


def test_no_pause_is_longer_than_the_longest_nor_than_none_at_all() -> None:
    short = Backoff(3.0, 2.0)
    none = Backoff(0.0, 4.0)
    for _ in range(5000):  # more failures than a float has binary digits
        short.note_failure()
        none.note_failure()
    assert (short.pause_s, none.pause_s, none.num_failures) == (2.0, 0.0, 5000)
