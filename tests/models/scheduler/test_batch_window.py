"""The batch window as a function of given times."""

from collections.abc import Iterable

import pytest

from models.costs.pass_times import PassTimes
from models.scheduler.batch_window import BatchWindow

PASS_S = 0.020


class Window(BatchWindow):
    """A window with passes of its own."""

    def __init__(self) -> None:
        self.times = PassTimes()
        super().__init__(self.times)

    def end_pass(self, duration_s: float, num_rows: int, now: float) -> None:
        self.times.note(num_rows, duration_s, now)
        self.note_pass(duration_s)


def window(away: dict[str, float], *, pass_s: float = PASS_S, row_s: float = 0.0) -> Window:
    """A window that knows how long sessions are away and what passes of 1 to 64 rows take."""
    made = Window()
    for num_rows in (1, 2, 4, 8, 16, 32, 64):
        made.end_pass(pass_s + row_s * num_rows, num_rows, 0.0)
    for session_id, away_s in away.items():
        made.note_answer(session_id, 0.0)
        made.note_message(session_id, away_s, 1)
    return made


def answer_all(made: Window, sessions: Iterable[str], now: float) -> None:
    for session_id in sessions:
        made.note_answer(session_id, now)


def test_nothing_is_known_at_first() -> None:
    made = Window()
    made.note_message("a", 1.0, 1)
    assert made.wait_s(1.0) == 0.0


def test_it_waits_for_who_was_answered_and_goes_when_all_are_in() -> None:
    made = window({"a": 0.0003, "b": 0.0003})
    answer_all(made, "ab", 1.0)
    made.note_message("a", 1.0002, 1)
    assert 0.0 < made.wait_s(1.0002) < 0.001
    made.note_message("b", 1.0003, 1)
    assert made.wait_s(1.0003) == 0.0


def test_nobody_is_waited_for_while_nobody_is_ready() -> None:
    made = window({"a": 0.0003})
    made.note_answer("a", 1.0)
    assert made.wait_s(1.0) == 0.0


def test_drafting_sessions_are_waited_for_where_rows_are_cheap() -> None:
    away = dict.fromkeys("abcdefgh", 0.008)
    cheap, dear = window(away), window(away, pass_s=0.001, row_s=0.001)
    for made in (cheap, dear):
        answer_all(made, "abcdefgh", 1.0)
        for session_id in "abcd":
            made.note_message(session_id, 1.004, 5)
        for session_id in "efgh":
            made.note_answer(session_id, 1.0)
    assert cheap.wait_s(1.004) >= 0.004
    assert dear.wait_s(1.004) == 0.0


def test_the_batch_stays_whole_when_drafts_differ_in_length() -> None:
    made = window(dict.fromkeys("abcd", 0.010))
    back_s = [0.004, 0.006, 0.008, 0.010]
    for number in range(1, 20):
        began = float(number)
        made.end_pass(PASS_S, 16, began)
        answer_all(made, "abcd", began)
        order = "abcd"[number % 4 :] + "abcd"[: number % 4]  # who drafts how long changes
        for session_id, away_s in zip(order, back_s, strict=True):
            made.note_message(session_id, began + away_s, 4)
            is_last = away_s == back_s[-1]
            assert (made.wait_s(began + away_s) == 0.0) == is_last


def test_who_is_away_for_longer_than_the_limit_is_not_waited_for() -> None:
    made = window({"a": 0.0003, "slow": 0.018})
    answer_all(made, "a", 1.0)
    made.note_answer("slow", 1.0)
    made.note_message("a", 1.0003, 1)
    assert made.wait_s(1.0003) == 0.0


def test_who_does_not_come_in_time_is_not_waited_for_again() -> None:
    made = window({"a": 0.001, "b": 0.001})
    answer_all(made, "ab", 1.0)
    made.note_message("a", 1.0005, 1)
    assert made.wait_s(1.0005) > 0.0
    assert made.wait_s(1.1) == 0.0
    assert made.wait_s(1.0006) == 0.0


def test_plain_steps_are_held_for_little_time_altogether() -> None:
    """A session that goes on alone loses at most 5% to company, whoever comes and goes."""
    made = window({"b": 0.002})
    held_s, now = 0.0, 1.0
    for _ in range(200):
        made.note_step("a")
        made.note_answer("b", now)
        began = now
        while (wait_s := made.wait_s(now)) > 0.0:
            now += wait_s
        held_s += now - began
        made.note_message("b", now, 1)
        made.note_end("b")
        now += PASS_S
        made.end_pass(PASS_S, 1, now)
    assert 0.0 < held_s <= 0.05 * 200 * PASS_S + 0.2 * PASS_S


def test_who_is_gone_is_not_waited_for() -> None:
    made = window({"a": 0.0003, "b": 0.0003})
    answer_all(made, "ab", 1.0)
    made.note_message("a", 1.0002, 1)
    made.forget("b")
    made.forget("never seen")
    assert made.wait_s(1.0002) == 0.0


def test_a_session_whose_work_ended_without_an_answer_is_not_ready() -> None:
    made = window({"a": 0.0003, "b": 0.0003})
    answer_all(made, "ab", 1.0)
    made.note_message("a", 1.0002, 1)
    made.note_end("a")
    assert made.wait_s(1.0002) == 0.0


@pytest.mark.parametrize("away_s", [0.0003, 0.005, 0.012])
def test_no_wait_is_longer_than_its_share_of_a_pass(away_s: float) -> None:
    made = window({"a": away_s, "b": away_s})
    answer_all(made, "ab", 1.0)
    made.note_message("a", 1.0, 1)
    assert made.wait_s(1.0) <= 0.75 * PASS_S


def test_a_visitor_who_stays_away_for_long_keeps_nobody_from_waiting_for_others() -> None:
    made = window(dict.fromkeys("abcd", 0.0003) | {"slow": 1.0})
    now = 1.0
    answer_all(made, [*"abcd", "slow"], now)
    for _ in range(3):  # the slow one is away meanwhile
        for session_id in "abc":
            made.note_message(session_id, now + 0.0002, 1)
        assert 0.0 < made.wait_s(now + 0.0002) < 0.001
        made.note_message("d", now + 0.0003, 1)
        assert made.wait_s(now + 0.0003) == 0.0
        now += PASS_S
        made.end_pass(PASS_S, 4, now)
        answer_all(made, "abcd", now)


def beside_a_prompt(made: Window, away_s: float, now: float) -> tuple[float, float]:
    """One round of stream "a", which drafts for `away_s`, beside prompt "p": (held, ended)."""
    made.note_answer("a", now)
    began = now
    while (wait_s := made.wait_s(now)) > 0.0 and now < began + away_s:
        now = min(now + wait_s, began + away_s)
    held_s = now - began
    if now < began + away_s:  # the chunk goes alone, and the message is found at its end
        now = max(now + PASS_S, began + away_s)
        made.end_pass(PASS_S, 8, now)
        made.note_chunk("p", 8)
    made.note_message("a", now, 6, away_s)
    now += PASS_S
    made.end_pass(PASS_S, 6, now)
    return held_s, now


@pytest.mark.parametrize("is_new", [True, False])
@pytest.mark.parametrize("away_s", [0.0007, 0.008, 0.012])
def test_a_prompt_waits_for_a_stream_that_is_soon_back(away_s: float, is_new: bool) -> None:
    """Also where it was only ever seen at the end of passes, or had been away for long before."""
    made = window({} if is_new else {"a": 0.2})
    made.note_message("p", 1.0, 1)
    made.note_chunk("p", 8)
    now = 1.0
    held = []
    for _ in range(12):
        held_s, now = beside_a_prompt(made, away_s, now)
        held.append(held_s)
    assert held[-4:] == [pytest.approx(away_s)] * 4


def test_a_prompt_does_not_wait_for_a_stream_that_drafts_longer_than_a_pass() -> None:
    made = window({})
    made.note_message("p", 1.0, 1)
    made.note_chunk("p", 8)
    now = 1.0
    for _ in range(40):
        held_s, now = beside_a_prompt(made, 1.5 * PASS_S, now)
    assert held_s == 0.0


def test_a_prompt_counts_by_the_rows_of_its_chunk() -> None:
    """Up to eight rows are free here: one more beside six is, eight more are not."""
    made = Window()
    for num_rows, pass_s in ((1, 0.020), (8, 0.020), (16, 0.040)):
        made.end_pass(pass_s, num_rows, 0.0)
    made.note_answer("a", 0.0)
    made.note_message("a", 0.008, 6)
    made.note_answer("a", 1.0)
    made.note_message("p", 1.0, 1)
    assert made.wait_s(1.0) >= 0.008
    made.note_chunk("p", 8)
    assert made.wait_s(1.0) == 0.0


def held_for(made: Window, now: float) -> float:
    """Return how long "b", which is there at once, waits for "a", answered with it."""
    answer_all(made, "ab", now)
    made.note_message("b", now, 4)
    return made.wait_s(now)


def test_who_is_found_at_the_end_of_a_pass_was_away_as_it_says() -> None:
    made = window({"a": 0.008, "b": 0.0001})
    for away_s, least_s in ((0.0, 0.008), (0.010, 0.010), (0.009, 0.00975)):
        made.note_answer("a", 1.0)
        made.end_pass(PASS_S, 1, 1.0 + PASS_S)
        made.note_message("a", 1.0001 + PASS_S, 4, away_s)  # it came while that pass ran
        assert least_s <= held_for(made, 2.0) <= 1.25 * least_s + 0.0004, away_s
    made.end_pass(PASS_S, 4, 2.014 + PASS_S)  # it was not there yet
    made.note_message("a", 2.0141 + PASS_S, 4, 0.010)
    assert held_for(made, 3.0) == pytest.approx(0.75 * PASS_S)
    made.end_pass(PASS_S, 4, 3.015 + PASS_S)
    made.note_message("a", 3.0151 + PASS_S, 4, 1.0)  # no longer than until it was found
    assert held_for(made, 4.0) == 0.0
    assert held_for(made, 4.03) == 0.0


def test_a_long_time_away_is_not_believed_for_long() -> None:
    made = window({"a": 0.008, "b": 0.0001})
    made.note_answer("a", 1.0)
    made.end_pass(PASS_S, 1, 61.0)
    made.note_message("a", 61.0001, 4, 60.0)
    now = 62.0
    for _ in range(12):
        held_s = held_for(made, now)
        made.note_message("a", now + 0.008, 4, 0.008)
        made.end_pass(PASS_S, 8, now + 0.008 + PASS_S)
        now += 1.0
    assert held_s >= 0.008


@pytest.mark.parametrize("link_s", [0.4, 600.0])
def test_a_message_that_was_lost_for_long_keeps_no_others_apart(link_s: float) -> None:
    made = window({})
    made.note_answer("lost", 0.1)
    made.note_message("lost", 0.1 + link_s, 5, 0.002)
    made.note_end("lost")
    begin_s = {"a": 1000.0, "b": 1000.0, "c": 1000.012, "d": 1000.012}
    assert sizes_of_passes(made, begin_s, 0.6 * PASS_S, 20)[-4:] == [4] * 4


def test_messages_that_are_under_way_for_long_count_for_that() -> None:
    made = window({"b": 0.0001})
    for now in (0.7, 0.8, 0.9):
        made.note_answer("a", now)
        made.note_message("a", now + 0.006, 4, 0.002)  # 4 ms under way
    made.note_answer("a", 1.1)
    made.end_pass(PASS_S, 1, 1.1 + PASS_S)
    made.note_message("a", 1.1001 + PASS_S, 4, 0.004)
    assert 0.008 <= held_for(made, 2.0) <= 0.011


def sizes_of_passes(
    made: Window, back_s: dict[str, float], away_s: float, number: int
) -> list[int]:
    """Sessions in each of so many passes; `back_s` is when each comes first."""
    ready: list[str] = []
    sizes: list[int] = []
    now = min(back_s.values())
    while len(sizes) < number:
        for name in [name for name, when in back_s.items() if when <= now]:
            made.note_message(name, now, 5, away_s)
            ready.append(name)
            del back_s[name]
        wait_s = made.wait_s(now) if ready else 1.0
        if wait_s > 0.0:
            now = min([now + wait_s, *back_s.values()])
            continue
        now += PASS_S
        made.end_pass(PASS_S, 5 * len(ready), now)
        answer_all(made, ready, now)
        back_s |= dict.fromkeys(ready, now + away_s)
        sizes.append(len(ready))
        ready = []
    return sizes


def test_three_groups_become_two_where_a_draft_takes_as_long_as_a_pass() -> None:
    """Each of three waits for two others' passes; all together would leave the target idle."""
    begin_s = {"a": 1.0, "b": 1.015, "c": 1.035, "d": 1.036}
    sizes = sizes_of_passes(window({}), begin_s, 1.05 * PASS_S, 40)
    assert sizes[:3] == [1, 1, 2]
    assert sizes[-6:] == [2] * 6


def test_two_halves_become_one_where_drafts_are_short() -> None:
    begin_s = {"a": 1.0, "b": 1.0, "c": 1.012, "d": 1.012}
    sizes = sizes_of_passes(window({}), begin_s, 0.6 * PASS_S, 20)
    assert sizes[0] == 2
    assert sizes[-4:] == [4] * 4


@pytest.mark.parametrize("other_s", [1.0, 0.025])
def test_a_third_group_counts_if_it_is_soon_back(other_s: float) -> None:
    """Two groups take turns as well apart as together; three have one pass less if two meet."""
    made = window({"a": 0.025, "b": 0.025, "other": other_s})
    made.note_answer("a", 1.0)
    made.note_answer("other", 1.014)
    made.note_message("b", 1.015, 4)
    assert (made.wait_s(1.015) > 0.0) == (other_s == 0.025)
