"""The target engine alone: verdicts, run_on, chunked prompts, preemption, forming."""

import pytest

from models.engine.target import TargetEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import (
    Close,
    EngineReply,
    Failed,
    NeedOpen,
    NeedPrefix,
    Propose,
    Verdict,
)
from tests.cases.kv_tokens import num_kv_tokens
from tests.cases.target import PROMPT, close_all, submit_open, submit_verify, text_of
from tests.fakes.engines import (
    EOS_ID,
    EPOCH,
    FakeClock,
    drain,
    make_runner,
    make_target,
    random_prompt,
    reference_greedy,
)

pytestmark = pytest.mark.every_engine


@pytest.mark.parametrize("num_right", [0, 1, 3, 4])
def test_a_draft_stands_up_to_its_first_wrong_token(num_right: int) -> None:
    expected = reference_greedy(PROMPT, 5)
    draft = expected[:4]
    if num_right < 4:
        draft[num_right] = (draft[num_right] + 1) % EOS_ID
    engine = make_target()
    submit_open(engine)
    submit_verify(engine, 1, PROMPT, draft)
    (verdict,) = drain(engine)
    assert isinstance(verdict, Verdict)
    assert (verdict.num_accepted, verdict.token) == (num_right, expected[num_right])
    assert (verdict.part, verdict.is_last) == (0, True)
    assert verdict.timing.num_rows == len(PROMPT) + 4
    committed = [*PROMPT, *expected[: num_right + 1]]
    submit_verify(engine, 2, committed, [], base_len=len(committed) - 1)
    (verdict,) = drain(engine)
    assert verdict.token == reference_greedy(committed, 1)[0]
    assert verdict.timing.num_rows == 1
    close_all(engine)


def test_run_on_goes_on_alone() -> None:
    expected = reference_greedy(PROMPT, 6)
    engine = make_target()
    submit_open(engine)
    submit_verify(engine, 1, PROMPT, expected[:2], run_on=3)
    replies = drain(engine)
    assert text_of(replies, expected) == expected
    assert [(v.part, v.is_last) for v in replies] == [(0, False), (1, False), (2, False), (3, True)]
    close_all(engine)


def test_run_on_follows_a_rejection() -> None:
    expected = reference_greedy(PROMPT, 5)
    engine = make_target()
    submit_open(engine)
    draft = [expected[0], (expected[1] + 1) % EOS_ID, expected[2]]
    submit_verify(engine, 1, PROMPT, draft, run_on=3)
    assert text_of(drain(engine), draft) == expected
    close_all(engine)


def test_a_newer_message_ends_run_on() -> None:
    expected = reference_greedy(PROMPT, 8)
    engine = make_target()
    submit_open(engine)
    submit_verify(engine, 1, PROMPT, [], run_on=100)
    replies = [reply for _ in range(4) for _, reply in engine.step()]
    assert text_of(replies) == expected[:4]
    # The sender has seen two parts only; it drafts on from there.
    committed = [*PROMPT, *expected[:2]]
    submit_verify(engine, 2, committed, expected[2:4], base_len=len(committed) - 1)
    (verdict,) = drain(engine)
    assert (verdict.seq, verdict.num_accepted, verdict.token) == (2, 2, expected[4])
    close_all(engine)


def test_a_repeat_gives_all_parts_again_and_restarts_nothing() -> None:
    engine = make_target()
    submit_open(engine)
    submit_verify(engine, 1, PROMPT, [], run_on=3, reply_to="first")
    parts = [reply for _ in range(2) for _, reply in engine.step()]
    submit_verify(engine, 1, PROMPT, [], run_on=3, reply_to="second")
    answers = engine.step()
    assert {address for address, _ in answers} == {"second"}
    assert [reply.part for _, reply in answers] == [0, 1, 2]
    assert [reply for _, reply in answers][:2] == parts
    assert [reply.part for reply in drain(engine)] == [3]
    submit_verify(engine, 1, PROMPT, [], run_on=3)
    assert [reply.part for reply in drain(engine)] == [0, 1, 2, 3]
    close_all(engine)


def test_an_eos_ends_the_answer_even_inside_the_draft() -> None:
    expected = reference_greedy(PROMPT, 5)
    engine = make_target()
    submit_open(engine, eos_ids=[expected[2]])
    length = expected.index(expected[2])
    submit_verify(engine, 1, PROMPT, expected[:4], run_on=5)
    (verdict,) = drain(engine)
    assert (verdict.num_accepted, verdict.token, verdict.is_last) == (length, expected[2], True)
    close_all(engine)


def test_the_context_ends_the_answer() -> None:
    expected = reference_greedy(PROMPT, 5)
    engine = make_target(max_model_len=len(PROMPT) + 3)
    submit_open(engine)
    submit_verify(engine, 1, PROMPT, expected[:1], run_on=50)
    replies = drain(engine)
    assert text_of(replies, expected) == expected[:3]
    assert replies[-1].is_last
    submit_verify(engine, 2, PROMPT, expected[:5])
    (verdict,) = drain(engine)
    assert (verdict.num_accepted, verdict.token) == (2, expected[2])
    submit_verify(engine, 3, [*PROMPT, *expected[:3]], [])
    (failed,) = drain(engine)
    assert isinstance(failed, Failed)
    assert failed.code == "context_too_long"
    submit_verify(engine, 4, PROMPT, [])
    assert text_of(drain(engine)) == expected[:1]
    close_all(engine)


def test_unknown_sessions_and_epochs_and_prefixes() -> None:
    engine = make_target()
    submit_verify(engine, 1, PROMPT, [])
    assert drain(engine) == [NeedOpen(session_id="s", seq=1, epoch=EPOCH)]
    submit_open(engine)
    submit_verify(engine, 2, PROMPT, [], base_len=5)
    assert drain(engine) == [NeedPrefix(session_id="s", seq=2, have_len=0, have_hash=0)]
    submit_verify(engine, 3, PROMPT, [])
    assert text_of(drain(engine)) == reference_greedy(PROMPT, 1)
    engine.submit(Close(session_id="s", epoch=EPOCH + 1), "r")
    assert engine.load().num_sessions == 1
    engine.submit(Close(session_id="s", epoch=EPOCH), "r")
    assert engine.load().num_sessions == 0
    close_all(engine)


def test_impossible_messages_fail_alone() -> None:
    engine = make_target()
    for seq, changes in enumerate([{"draft": [256]}, {"run_on": -1}, {"ids": []}], start=1):
        submit_open(engine)
        submit_verify(engine, seq, **({"ids": PROMPT, "draft": []} | changes))
        (reply,) = drain(engine)
        assert isinstance(reply, Failed)
        assert reply.code == "invalid"
    header = {"session_id": "s", "epoch": EPOCH, "seq": 9, "base_len": 0, "prefix_hash": 0}
    engine.submit(Propose(**header, tokens=[1], num_draft_tokens=1, deadline_ms=1.0), "r")
    assert isinstance(drain(engine)[0], Failed)
    close_all(engine)


def test_a_long_prompt_does_not_stall_the_others() -> None:
    engine = make_target(max_num_batched_tokens=16)
    long = random_prompt(5, 100)
    submit_open(engine, "short")
    submit_verify(engine, 1, PROMPT, [], run_on=40, session_id="short")
    engine.step()
    submit_open(engine, "long", prompt_len=len(long))
    submit_verify(engine, 1, long, [], session_id="long")
    replies: list[EngineReply] = []
    num_steps = 0
    while not any(reply.session_id == "long" for reply in replies):
        replies += [reply for _, reply in engine.step()]
        num_steps += 1
    from_short = [reply for reply in replies if reply.session_id == "short"]
    assert num_steps >= 100 // 16
    assert len(from_short) == num_steps  # one token in every pass of the long prompt
    assert replies[-1].session_id == "long" or replies[-2].session_id == "long"
    (verdict,) = [reply for reply in replies if reply.session_id == "long"]
    assert verdict.token == reference_greedy(long, 1)[0]
    close_all(engine)


def test_more_draft_tokens_than_a_pass_holds_are_refused_not_lost() -> None:
    expected = reference_greedy(PROMPT, 14)
    engine = make_target(max_num_batched_tokens=16)
    submit_open(engine)
    submit_verify(engine, 1, PROMPT, expected[:13])
    (verdict,) = drain(engine)
    assert (verdict.num_accepted, verdict.token) == (11, expected[11])
    close_all(engine)


def test_a_preempted_idle_session_is_computed_again() -> None:
    engine = make_target(kv_cache_tokens=96)
    old, young = random_prompt(1, 60), random_prompt(2, 50)
    for name, prompt in [("old", old), ("young", young)]:
        submit_open(engine, name, prompt_len=len(prompt))
    submit_verify(engine, 1, young, [], session_id="young")
    token = text_of(drain(engine))[0]
    submit_verify(engine, 1, old, [], session_id="old")
    assert len(drain(engine)) == 1
    assert engine.load().num_preemptions == 1
    submit_verify(engine, 2, [*young, token], [], base_len=len(young), session_id="young")
    assert drain(engine) == []
    assert not engine.has_work  # it waits for the older session's blocks
    engine.close("old")
    assert text_of(drain(engine)) == reference_greedy([*young, token], 1)
    close_all(engine)


def test_a_session_larger_than_the_pool_is_told() -> None:
    engine = make_target(kv_cache_tokens=96)
    prompt = random_prompt(3, 94)
    submit_open(engine, prompt_len=len(prompt))
    submit_verify(engine, 1, prompt, [], run_on=20)
    replies = drain(engine)
    assert [type(reply) for reply in replies] == [Verdict, Verdict, Verdict, Failed]
    assert replies[-1].code == "context_too_long"
    close_all(engine)


# --- the leader's view -----------------------------------------------------------------------


def test_the_leader_waits_for_who_is_expected_back() -> None:
    clock = FakeClock()
    runner = make_runner()
    engine = TargetEngine(runner, NoMaskSource(), EPOCH, clock=clock)
    for name in ("a", "b"):
        submit_open(engine, name)
        submit_verify(engine, 1, PROMPT, [], session_id=name)
    assert engine.wait_s(clock.now) == 0.0
    for num_rows in (1, 2, 8):
        engine._times.note(num_rows, 0.020, clock.now)
    engine.step()
    clock.now += 0.0001
    for seq in (2, 3):
        submit_verify(engine, seq, PROMPT, [], session_id="a")
        assert 0 < engine.wait_s(clock.now) <= 0.001
        submit_verify(engine, seq, PROMPT, [], session_id="b")
        assert engine.wait_s(clock.now) == 0.0
        engine.step()
    assert engine.wait_s(clock.now) == 0.0  # nothing to compute: nothing to hold back
    submit_verify(engine, 4, PROMPT, [], session_id="a")
    engine.submit(Close(session_id="b", epoch=EPOCH + 1), "r")  # closes nothing
    assert engine.wait_s(clock.now) > 0.0
    engine.submit(Close(session_id="b", epoch=EPOCH), "r")
    assert engine.wait_s(clock.now) == 0.0
    close_all(engine)


def test_a_prompt_counts_by_the_rows_of_its_chunk_for_who_is_expected_back() -> None:
    clock = FakeClock()
    engine = TargetEngine(
        make_runner(max_num_batched_tokens=16), NoMaskSource(), EPOCH, clock=clock
    )
    for num_rows, pass_s in ((1, 0.020), (8, 0.020), (16, 0.040)):
        engine._times.note(num_rows, pass_s, clock.now)
    submit_open(engine, "a")
    submit_verify(engine, 1, PROMPT, [], session_id="a")
    drain(engine)
    clock.now += 0.008
    submit_verify(engine, 2, [*PROMPT, 5], [6, 7, 8, 9, 10], session_id="a")
    drain(engine)
    submit_open(engine, "long", prompt_len=60)
    submit_verify(engine, 1, [7] * 60, [], session_id="long")
    assert engine.wait_s(clock.now) >= 0.008
    engine.step()
    assert 0 < num_kv_tokens(engine) - len(PROMPT) - 6 < 60
    assert engine.wait_s(clock.now) == 0.0
    close_all(engine)


def test_load_and_idle_times() -> None:
    clock = FakeClock()
    engine = TargetEngine(make_runner(), NoMaskSource(), EPOCH, clock=clock)
    submit_open(engine)
    submit_verify(engine, 1, PROMPT, [], run_on=1)
    engine.step()
    clock.now += 3.0
    assert engine.idle_s() == {"s": 0.0}
    assert engine.load().num_running == 1
    drain(engine)
    clock.now += 5.0
    assert engine.idle_s() == {"s": 5.0}
    load = engine.load()
    assert (load.num_sessions, load.num_running, load.num_waiting) == (1, 0, 0)
    assert num_kv_tokens(engine) == len(PROMPT) + 1
    engine.close("s")
    engine.close("s")
    assert engine.idle_s() == {}
    close_all(engine)
