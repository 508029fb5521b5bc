"""The book of leases: how each of them ends, and who hears of it."""

from __future__ import annotations

import random
from concurrent.futures import ThreadPoolExecutor

from deployments.link.leases import LeaseBook, LeaseKey
from tests.fakes.clock import Clock


def test_a_release_frees_the_session_and_is_not_reported() -> None:
    book = LeaseBook(idle_timeout_s=10.0)
    lease_id = book.grant("a")
    assert "a" in book
    for _ in range(2):
        book.release("a", lease_id)
    assert "a" not in book
    assert (book.take_freed(), book.take_freed(), book.ended()) == (["a"], [], [])


def test_a_newer_lease_ends_the_older_and_keeps_the_session() -> None:
    book = LeaseBook(idle_timeout_s=10.0)
    old, new = book.grant("a"), book.grant("a")
    assert book.ended() == book.ended() == [("a", old)], "an answer may have been lost"
    book.acknowledge([("a", old), ("a", 99)])
    book.release("a", old)
    assert (book.ended(), book.take_freed(), len(book)) == ([], [], 1)
    book.release("a", new)
    assert (book.take_freed(), len(book)) == (["a"], 0)


def test_a_session_freed_and_leased_again_is_still_to_be_forgotten() -> None:
    book = LeaseBook(idle_timeout_s=10.0)
    book.release("a", book.grant("a"))
    book.grant("a")
    assert book.take_freed() == ["a"]
    assert "a" in book


def test_a_lease_that_its_holder_no_longer_renews_ends_soon() -> None:
    """One that was never renewed has the longer time: its holder may not know how."""
    clock = Clock()
    book = LeaseBook(idle_timeout_s=120.0, clock=clock)
    for name in ("renewed", "stopped", "silent"):
        book.grant(name)
    ended = []
    for now_s in range(1, 41):
        clock.now_s = float(now_s)
        book.touch(["renewed", "stopped", "silent"] if now_s == 1 else [])
        if now_s % 3 == 0:
            book.renew(["renewed", "stranger", *(["stopped"] if now_s < 12 else [])])
        ended += [(name, now_s) for name in book.end_idle()]
    assert ended == [("stopped", 25)], "15 s after the last renewal, at 9 s"
    assert ("renewed" in book, "silent" in book) == (True, True)


def test_renewals_that_could_not_be_read_in_time_end_no_lease() -> None:
    """After a pause of the process itself, what its holders sent comes first."""
    clock = Clock()
    book = LeaseBook(idle_timeout_s=120.0, clock=clock)
    book.grant("a")
    book.renew(["a"])
    clock.now_s = 1.0
    assert book.end_idle() == []
    clock.now_s = 60.0
    assert book.end_idle() == []
    book.renew(["a"])
    clock.now_s = 61.0
    assert book.end_idle() == []
    assert "a" in book


def test_an_idle_lease_ends_and_both_sides_hear_of_it() -> None:
    clock = Clock()
    book = LeaseBook(idle_timeout_s=10.0, clock=clock)
    idle = book.grant("idle")
    book.grant("busy")
    clock.now_s = 9.0
    book.touch(["busy", "stranger"])
    assert book.end_idle() == []
    clock.now_s = 10.5
    assert book.end_idle() == ["idle"]
    assert (book.take_freed(), book.ended(), "busy" in book) == (["idle"], [("idle", idle)], True)


def test_a_session_of_which_nothing_was_seen_has_less_time() -> None:
    clock = Clock()
    book = LeaseBook(idle_timeout_s=100.0, first_message_s=3.0, clock=clock)
    for name in ("mute", "quiet"):
        book.grant(name)
    book.touch(["quiet"])
    clock.now_s = 4.0
    assert book.end_idle() == ["mute"]


def test_work_for_a_session_counts_as_a_sign_of_life() -> None:
    clock, idle_s = Clock(), {"worked for": 0.0, "done": 20.0}
    book = LeaseBook(idle_timeout_s=10.0, idle_s=lambda: idle_s, clock=clock)
    for name in (*idle_s, "unknown"):
        book.grant(name)
    clock.now_s = 30.0
    assert book.end_idle() == ["done", "unknown"]


def test_idle_sessions_are_not_looked_for_all_the_time() -> None:
    clock, looks = Clock(), []

    def idle_s() -> dict[str, float]:
        looks.append(clock.now_s)
        return {}

    book = LeaseBook(idle_timeout_s=10.0, idle_s=idle_s, clock=clock)
    for _ in range(40):
        book.end_idle()
        clock.now_s += 0.25
    assert len(looks) == 10
    assert LeaseBook(idle_timeout_s=0.5).sweep_period_s == 0.25


def test_threads_may_lease_release_and_settle_at_once() -> None:
    """Every lease ends exactly once, by a release or by a newer one, whoever is faster."""
    book = LeaseBook(idle_timeout_s=1e9)
    num_rounds = 500

    def lease(seed: int) -> tuple[list[LeaseKey], list[str]]:
        draw = random.Random(seed)
        granted, freed = [], []
        for _ in range(num_rounds):
            session_id = f"s{draw.randrange(4)}"
            granted.append((session_id, book.grant(session_id)))
            if draw.random() < 0.7:
                book.release(*draw.choice(granted))
            freed += book.take_freed()
        return granted, freed

    with ThreadPoolExecutor(4) as threads:
        done = list(threads.map(lease, range(4)))
    granted = [key for keys, _ in done for key in keys]
    freed = [session_id for _, sessions in done for session_id in sessions]
    assert len(set(granted)) == len(granted) == 4 * num_rounds
    assert len(book.ended()) + len(freed) + len(book) == len(granted)
