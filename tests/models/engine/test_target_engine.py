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
from tests.cases.messages import verifying
from tests.cases.target import PROMPT, text_of
from tests.fakes.engines import (
    EOS_ID,
    EPOCH,
    FakeClock,
    make_runner,
    random_prompt,
    reference_greedy,
)
from tests.models.engine.asked import TargetOf

pytestmark = pytest.mark.every_engine


@pytest.mark.parametrize("run_on", [0, 3])
@pytest.mark.parametrize("num_right", [0, 1, 3, 4])
def test_a_draft_stands_up_to_its_first_wrong_token_and_plain_steps_follow(
    target_of: TargetOf, num_right: int, run_on: int
) -> None:
    num_tokens = num_right + 1 + run_on
    expected = reference_greedy(PROMPT, 8)
    draft = expected[:4]
    if num_right < 4:
        draft[num_right] = (draft[num_right] + 1) % EOS_ID
    target = target_of()
    first, *others = verdicts = target.ask(PROMPT, draft, run_on=run_on)
    assert (first.num_accepted, first.token) == (num_right, expected[num_right])
    assert first.timing.num_rows == len(PROMPT) + 4
    assert text_of(verdicts, draft) == expected[:num_tokens]
    assert [(v.part, v.is_last) for v in verdicts] == [(n, n == run_on) for n in range(1 + run_on)]
    assert len(others) == run_on
    committed = [*PROMPT, *expected[:num_tokens]]
    (verdict,) = target.ask(committed, [], base_len=len(committed) - 1)
    assert verdict.token == reference_greedy(committed, 1)[0]
    assert verdict.timing.num_rows == 1


def test_a_newer_message_ends_run_on(target_of: TargetOf) -> None:
    expected = reference_greedy(PROMPT, 8)
    target = target_of()
    target.send(PROMPT, [], run_on=100)
    replies = [reply for _ in range(4) for reply in target.step()]
    assert text_of(replies) == expected[:4]
    # The sender has seen two parts only; it drafts on from there.
    committed = [*PROMPT, *expected[:2]]
    (verdict,) = target.ask(committed, expected[2:4], base_len=len(committed) - 1)
    assert (verdict.seq, verdict.num_accepted, verdict.token) == (2, 2, expected[4])


def test_a_repeat_gives_all_parts_again_and_restarts_nothing(target_of: TargetOf) -> None:
    target = target_of()
    target.send(PROMPT, [], run_on=3, reply_to="first")
    parts = [reply for _ in range(2) for reply in target.step()]
    target.send(PROMPT, [], run_on=3, seq=1, reply_to="second")
    answers = target.engine.step()
    assert {address for address, _ in answers} == {"second"}
    assert [reply.part for _, reply in answers] == [0, 1, 2]
    assert [reply for _, reply in answers][:2] == parts
    assert [reply.part for reply in target.drain()] == [3]
    assert [reply.part for reply in target.ask(PROMPT, [], run_on=3, seq=1)] == [0, 1, 2, 3]


def test_an_eos_ends_the_answer_even_inside_the_draft(target_of: TargetOf) -> None:
    expected = reference_greedy(PROMPT, 5)
    target = target_of()
    target.open(eos_ids=[expected[2]])
    length = expected.index(expected[2])
    (verdict,) = target.ask(PROMPT, expected[:4], run_on=5)
    assert (verdict.num_accepted, verdict.token, verdict.is_last) == (length, expected[2], True)


def test_the_context_ends_the_answer(target_of: TargetOf) -> None:
    expected = reference_greedy(PROMPT, 5)
    target = target_of(max_model_len=len(PROMPT) + 3)
    replies = target.ask(PROMPT, expected[:1], run_on=50)
    assert text_of(replies, expected) == expected[:3]
    assert replies[-1].is_last
    (verdict,) = target.ask(PROMPT, expected[:5])
    assert (verdict.num_accepted, verdict.token) == (2, expected[2])
    (failed,) = target.ask([*PROMPT, *expected[:3]], [])
    assert isinstance(failed, Failed)
    assert failed.code == "context_too_long"
    assert text_of(target.ask(PROMPT, [])) == expected[:1]


def test_unknown_sessions_and_epochs_and_prefixes(target_of: TargetOf) -> None:
    target = target_of()
    target.engine.submit(verifying("s", 1, PROMPT, []), "r")
    assert target.drain() == [NeedOpen(session_id="s", seq=1, epoch=EPOCH)]
    need_prefix = NeedPrefix(session_id="s", seq=2, have_len=0, have_hash=0)
    assert target.ask(PROMPT, [], seq=2, base_len=5) == [need_prefix]
    assert text_of(target.ask(PROMPT, [])) == reference_greedy(PROMPT, 1)
    target.engine.submit(Close(session_id="s", epoch=EPOCH + 1), "r")
    assert target.engine.load().num_sessions == 1
    target.engine.submit(Close(session_id="s", epoch=EPOCH), "r")
    assert target.engine.load().num_sessions == 0


def test_impossible_messages_fail_alone(target_of: TargetOf) -> None:
    target = target_of()
    target.open()
    for changes in ({"draft": [256]}, {"run_on": -1}, {"ids": []}):
        (reply,) = target.ask(**changes)
        assert isinstance(reply, Failed)
        assert reply.code == "invalid"
    header = {"session_id": "s", "epoch": EPOCH, "seq": 9, "base_len": 0, "prefix_hash": 0}
    target.engine.submit(Propose(**header, tokens=[1], num_draft_tokens=1, deadline_ms=1.0), "r")
    assert isinstance(target.drain()[0], Failed)


def test_a_long_prompt_does_not_stall_the_others(target_of: TargetOf) -> None:
    target = target_of(max_num_batched_tokens=16)
    long = random_prompt(5, 100)
    target.send(PROMPT, [], run_on=40, name="short")
    target.step()
    target.send(long, [], name="long")
    replies: list[EngineReply] = []
    num_steps = 0
    while not any(reply.session_id == "long" for reply in replies):
        replies += target.step()
        num_steps += 1
    from_short = [reply for reply in replies if reply.session_id == "short"]
    assert num_steps >= 100 // 16
    assert len(from_short) == num_steps  # one token in every pass of the long prompt
    assert replies[-1].session_id == "long" or replies[-2].session_id == "long"
    (verdict,) = [reply for reply in replies if reply.session_id == "long"]
    assert verdict.token == reference_greedy(long, 1)[0]


def test_more_draft_tokens_than_a_pass_holds_are_refused_not_lost(target_of: TargetOf) -> None:
    expected = reference_greedy(PROMPT, 14)
    target = target_of(max_num_batched_tokens=16)
    (verdict,) = target.ask(PROMPT, expected[:13])
    assert (verdict.num_accepted, verdict.token) == (11, expected[11])


def test_a_preempted_idle_session_is_computed_again(target_of: TargetOf) -> None:
    target = target_of(kv_cache_tokens=96)
    old, young = random_prompt(1, 60), random_prompt(2, 50)
    for name, prompt in [("old", old), ("young", young)]:
        target.open(name, prompt_len=len(prompt))
    token = text_of(target.ask(young, [], name="young"))[0]
    assert len(target.ask(old, [], name="old")) == 1
    assert target.engine.load().num_preemptions == 1
    assert target.ask([*young, token], [], base_len=len(young), name="young") == []
    assert not target.engine.has_work  # it waits for the older session's blocks
    target.engine.close("old")
    assert text_of(target.drain()) == reference_greedy([*young, token], 1)


def test_a_session_larger_than_the_pool_is_told(target_of: TargetOf) -> None:
    target = target_of(kv_cache_tokens=96)
    replies = target.ask(random_prompt(3, 94), [], run_on=20)
    assert [type(reply) for reply in replies] == [Verdict, Verdict, Verdict, Failed]
    assert replies[-1].code == "context_too_long"


# --- the leader's view -----------------------------------------------------------------------


def test_the_leader_waits_for_who_is_expected_back(target_of: TargetOf) -> None:
    clock = FakeClock()
    engine = TargetEngine(make_runner(), NoMaskSource(), EPOCH, clock=clock)
    target = target_of(engine)
    for name in ("a", "b"):
        target.send(PROMPT, [], name=name)
    assert engine.wait_s(clock.now) == 0.0
    for num_rows in (1, 2, 8):
        engine._times.note(num_rows, 0.020, clock.now)
    engine.step()
    clock.now += 0.0001
    for _ in range(2):
        target.send(PROMPT, [], name="a")
        assert 0 < engine.wait_s(clock.now) <= 0.001
        target.send(PROMPT, [], name="b")
        assert engine.wait_s(clock.now) == 0.0
        engine.step()
    assert engine.wait_s(clock.now) == 0.0  # nothing to compute: nothing to hold back
    target.send(PROMPT, [], name="a")
    engine.submit(Close(session_id="b", epoch=EPOCH + 1), "r")  # closes nothing
    assert engine.wait_s(clock.now) > 0.0
    engine.submit(Close(session_id="b", epoch=EPOCH), "r")
    assert engine.wait_s(clock.now) == 0.0


def test_a_prompt_counts_by_the_rows_of_its_chunk_for_who_is_expected_back(
    target_of: TargetOf,
) -> None:
    clock, runner = FakeClock(), make_runner(max_num_batched_tokens=16)
    engine = TargetEngine(runner, NoMaskSource(), EPOCH, clock=clock)
    for num_rows, pass_s in ((1, 0.020), (8, 0.020), (16, 0.040)):
        engine._times.note(num_rows, pass_s, clock.now)
    target = target_of(engine)
    target.ask(PROMPT, [], name="a")
    clock.now += 0.008
    target.ask([*PROMPT, 5], [6, 7, 8, 9, 10], name="a")
    target.send([7] * 60, [], name="long")
    assert engine.wait_s(clock.now) >= 0.008
    engine.step()
    assert 0 < num_kv_tokens(engine) - len(PROMPT) - 6 < 60
    assert engine.wait_s(clock.now) == 0.0


def test_load_and_idle_times(target_of: TargetOf) -> None:
    clock = FakeClock()
    engine = TargetEngine(make_runner(), NoMaskSource(), EPOCH, clock=clock)
    target = target_of(engine)
    target.send(PROMPT, [], run_on=1)
    engine.step()
    clock.now += 3.0
    assert engine.idle_s() == {"s": 0.0}
    assert engine.load().num_running == 1
    target.drain()
    clock.now += 5.0
    assert engine.idle_s() == {"s": 5.0}
    load = engine.load()
    assert (load.num_sessions, load.num_running, load.num_waiting) == (1, 0, 0)
    assert num_kv_tokens(engine) == len(PROMPT) + 1
    engine.close("s")
    engine.close("s")
    assert engine.idle_s() == {}
