"""Tickets, stale answers and broken replies, against a scripted source and a real grammar walk."""

from collections.abc import Sequence
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from models.grammar.masks import LocalMaskSource, MaskClient, MaskWait
from models.protocol.messages import ConstraintReply, ConstraintRequest, GrammarCommitted
from models.protocol.token_sequence import TokenSequence
from models.sampling.logits import is_allowed
from tests.fakes.engines import CONSTRAINT, EOS_ID, ScriptedMasks, lowest_third


def make_session(generated: Sequence[int]) -> SimpleNamespace:
    return SimpleNamespace(session_id="s", generated=TokenSequence(generated), mask_base_len=0)


def allowed_ids(row: memoryview) -> set[int]:
    return {token for token in range(EOS_ID + 1) if is_allowed(row, token)}


def ask(
    source: ScriptedMasks, generated: Sequence[int], num_rows: int
) -> tuple[MaskClient, SimpleNamespace, MaskWait]:
    desk = MaskClient(source)
    session = make_session(generated)
    desk.open("s", CONSTRAINT)
    wait = desk.ask(session, CONSTRAINT.epoch, num_rows)
    desk.flush()
    return desk, session, wait


def test_rows_are_those_of_the_last_states() -> None:
    desk, _, wait = ask(ScriptedMasks(), [0, 1, 2, 3], 3)
    desk.collect(0.0)
    assert wait.rows is not None
    assert [allowed_ids(row) for row in wait.rows] == [
        lowest_third([0, 1]),
        lowest_third([0, 1, 2]),
        lowest_third([0, 1, 2, 3]),
    ]


def test_rows_behind_an_illegal_token_are_missing() -> None:
    desk, _, wait = ask(ScriptedMasks(), [0, 1, 1], 3)
    desk.collect(0.0)
    assert wait.rows is not None
    assert len(wait.rows) == 2


def test_committed_tokens_outside_the_grammar_are_a_failure() -> None:
    desk, _, wait = ask(ScriptedMasks(), [1, 1, 1], 1)
    desk.collect(0.0)
    assert wait.rows is None
    assert "outside the grammar" in wait.failure


def test_the_next_request_starts_where_the_matcher_is() -> None:
    source = ScriptedMasks()
    desk, session, _ = ask(source, [0, 1, 2], 1)
    source.committed["s"].extend([0, 1])
    desk.ask(session, CONSTRAINT.epoch, 1)
    desk.flush()
    desk.collect(0.0)
    assert session.mask_base_len == 2
    desk.ask(session, CONSTRAINT.epoch, 1)
    desk.flush()
    assert source.frames[-1][0].base_len == 2
    assert source.frames[-1][0].chain == [2]


def test_a_stale_request_is_asked_again_from_the_matcher() -> None:
    source = ScriptedMasks()
    desk, session, _ = ask(source, [0, 1, 2], 1)
    session.mask_base_len = 3  # the matcher was replaced and has less than it had
    wait = desk.ask(session, CONSTRAINT.epoch, 1)
    desk.flush()
    desk.collect(0.0)
    assert (wait.rows, wait.failure) == (None, "")
    desk.collect(0.0)
    assert wait.rows is not None


def test_a_matcher_with_other_tokens_is_a_failure() -> None:
    source = ScriptedMasks()
    desk, _, _ = ask(source, [0, 1, 2], 1)
    source.committed["s"].extend([0, 4])
    source.miss = "stale"
    wait = desk.ask(make_session([0, 1, 2]), CONSTRAINT.epoch, 1)
    desk.flush()
    desk.collect(0.0)
    assert "not ours" in wait.failure


@pytest.mark.parametrize("reason", ["unknown", "failed"])
def test_other_misses_are_failures(reason: str) -> None:
    source = ScriptedMasks()
    source.miss = reason
    desk, _, wait = ask(source, [], 1)
    desk.collect(0.0)
    assert wait.failure == f"mask {reason}"


def test_endless_staleness_ends() -> None:
    source = ScriptedMasks()
    source.miss = "stale"
    desk, _, wait = ask(source, [], 1)
    for _ in range(10):
        desk.collect(0.0)
    assert "stale after 4 requests" in wait.failure


def test_sessions_may_share_a_matcher_and_go_on_from_it_each_its_way() -> None:
    source = ScriptedMasks()
    desk = MaskClient(source)
    desk.open("s", CONSTRAINT)
    source.committed["s"].extend([0, 1])
    texts = {"one": [0, 1, 2], "two": [0, 1, 5]}
    waits = {}
    for name, generated in texts.items():
        desk.open(name, CONSTRAINT, "s")
        session = SimpleNamespace(
            session_id=name, generated=TokenSequence(generated), mask_base_len=2
        )
        waits[name] = desk.ask(session, CONSTRAINT.epoch, 1)
    desk.flush()
    desk.collect(0.0)
    assert {request.session_id for request in source.frames[-1]} == {"s"}
    for name, wait in waits.items():
        assert wait.rows is not None
        assert allowed_ids(wait.rows[0]) == lowest_third(texts[name])
    for name in ("s", "one"):
        desk.close(name)
        assert source.committed, "the matcher's masks are still asked for"
    desk.close("two")
    assert not source.committed


def test_a_session_may_change_its_matcher() -> None:
    source = ScriptedMasks()
    desk = MaskClient(source)
    desk.open("one", CONSTRAINT, "s")
    desk.open("one", CONSTRAINT, "t")
    assert source.committed.keys() == {"t"}


def test_a_dropped_wait_takes_no_reply() -> None:
    desk, session, wait = ask(ScriptedMasks(), [], 1)
    desk.drop(wait)
    desk.drop(wait)
    other = desk.ask(session, CONSTRAINT.epoch, 1)
    desk.flush()
    desk.collect(0.0)
    assert (wait.rows, wait.failure) == (None, "")
    assert other.rows is not None


def test_requests_of_one_tick_are_one_frame() -> None:
    source = ScriptedMasks()
    desk, session, _ = ask(source, [], 1)
    desk.ask(session, CONSTRAINT.epoch, 1)
    desk.ask(session, CONSTRAINT.epoch, 1)
    desk.flush()
    desk.flush()
    assert [len(frame) for frame in source.frames] == [1, 2]


def test_a_reply_of_the_wrong_size_is_a_failure() -> None:
    class Cropping(ScriptedMasks):
        def poll(self, timeout_s: float) -> list:
            return [replace(reply, rows=reply.rows[:-1]) for reply in super().poll(timeout_s)]

    desk, _, wait = ask(Cropping(), [], 1)
    desk.collect(0.0)
    assert "31 mask bytes" in wait.failure


def test_a_local_source_keeps_the_mask_replies_of_its_host() -> None:
    masks = ScriptedMasks()
    masks.open("s", CONSTRAINT)

    class Host:
        def handle(self, requests: list[ConstraintRequest]) -> list[ConstraintReply]:
            other = GrammarCommitted(session_id="s", seq=1, num_valid=0, is_complete=False)
            return [other, *(masks._answer(request) for request in requests)]

    source = LocalMaskSource(Host())
    desk = MaskClient(source)
    wait = desk.ask(make_session([]), CONSTRAINT.epoch, 1)
    desk.flush()
    desk.collect(0.0)
    assert wait.rows is not None
    assert source.poll(0.0) == []
