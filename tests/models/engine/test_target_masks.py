"""The target engine alone, with constrained sessions: masks that come, late or never."""

import pytest

from models.engine.target import TargetEngine
from models.grammar.masks import MaskSource
from models.protocol.messages import (
    EngineReply,
    Failed,
    Sampling,
    Verdict,
)
from tests.cases.target import PROMPT, close_all, submit_open, submit_verify, text_of
from tests.fakes.engines import (
    CONSTRAINT,
    EOS_ID,
    EPOCH,
    FakeClock,
    ScriptedMasks,
    drain,
    lowest_third,
    make_runner,
    random_prompt,
    reference_greedy,
)

pytestmark = pytest.mark.every_engine


def constrained(masks: MaskSource, clock: FakeClock | None = None) -> TargetEngine:
    engine = TargetEngine(make_runner(), masks, EPOCH, clock=clock or FakeClock(), mask_wait_s=0.5)
    submit_open(engine, constraint=CONSTRAINT, sampling=Sampling(seed=11))
    return engine


def plain_text(num_tokens: int) -> list[int]:
    engine = constrained(ScriptedMasks())
    submit_verify(engine, 1, PROMPT, [], run_on=num_tokens - 1)
    text = text_of(drain(engine))
    close_all(engine)
    return text


def test_every_token_obeys_the_grammar() -> None:
    text = plain_text(20)
    assert text[-1] == EOS_ID
    assert len(text) == 7
    for i, token in enumerate(text):
        assert token in lowest_third(text[:i])


@pytest.mark.parametrize("delay_polls", [0, 1, 5])
def test_a_verify_asks_for_all_rows_at_once(delay_polls: int) -> None:
    text = plain_text(7)
    masks = ScriptedMasks()
    masks.delay_polls = delay_polls
    engine = constrained(masks)
    submit_verify(engine, 1, PROMPT, text[:3], run_on=2)
    assert [(r.num_rows, r.chain) for frame in masks.frames for r in frame] == [(4, text[:3])]
    assert text_of(drain(engine), text) == text[:6]
    close_all(engine)


def test_the_chain_starts_at_the_committed_tokens_of_the_matcher() -> None:
    text = plain_text(7)
    masks = ScriptedMasks()
    engine = constrained(masks)
    submit_verify(engine, 1, PROMPT, [])
    drain(engine)
    masks.committed["s"].extend(text[:1])
    submit_verify(engine, 2, [*PROMPT, text[0]], text[1:3], base_len=len(PROMPT))
    drain(engine)
    submit_verify(engine, 3, [*PROMPT, *text[:4]], [], base_len=len(PROMPT) + 3)
    assert text_of(drain(engine)) == [text[4]]
    assert masks.frames[-1][0].base_len == 1
    close_all(engine)


def test_an_illegal_draft_token_ends_the_rows() -> None:
    text = plain_text(7)
    engine = constrained(ScriptedMasks())
    illegal = next(token for token in range(EOS_ID) if token not in lowest_third(text[:2]))
    submit_verify(engine, 1, PROMPT, [*text[:2], illegal, text[3]])
    (verdict,) = drain(engine)
    assert (verdict.num_accepted, verdict.token) == (2, text[2])
    close_all(engine)


def test_rows_behind_a_drafted_eos_are_not_needed() -> None:
    text = plain_text(7)
    engine = constrained(ScriptedMasks())
    submit_verify(engine, 1, PROMPT, [*text, 5], run_on=3)
    (verdict,) = drain(engine)
    assert (verdict.num_accepted, verdict.token, verdict.is_last) == (6, EOS_ID, True)
    close_all(engine)


@pytest.mark.parametrize("fault", ["silent", "unknown", "failed", "empty"])
def test_without_masks_there_is_no_token(fault: str) -> None:
    clock = FakeClock()
    masks = ScriptedMasks()
    masks.is_silent = fault == "silent"
    if fault == "empty":
        masks.rule = lambda tokens: set()
    elif fault != "silent":
        masks.miss = fault
    engine = constrained(masks, clock)
    submit_open(engine, "free")
    submit_verify(engine, 1, PROMPT, [], run_on=3)
    submit_verify(engine, 1, PROMPT, [], run_on=3, session_id="free")
    replies: list[EngineReply] = []
    while engine.has_work:
        replies += [reply for _, reply in engine.step()]
        clock.now += 0.05
    assert len([reply for reply in replies if reply.session_id == "free"]) == 4
    (failed,) = [reply for reply in replies if reply.session_id == "s"]
    assert isinstance(failed, Failed)
    assert failed.code == "mask_unavailable"
    assert clock.now < 102.0
    masks.is_silent, masks.miss, masks.rule = False, "", lowest_third
    submit_verify(engine, 2, PROMPT, [])
    assert isinstance(drain(engine)[0], Verdict)
    close_all(engine)


def test_others_go_on_while_a_session_waits_for_its_mask() -> None:
    masks = ScriptedMasks()
    masks.is_silent = True
    engine = constrained(masks)
    submit_open(engine, "free")
    submit_verify(engine, 1, PROMPT, [])
    submit_verify(engine, 1, PROMPT, [], run_on=4, session_id="free")
    replies = [reply for _ in range(5) for _, reply in engine.step()]
    assert text_of(replies) == reference_greedy(PROMPT, 5)
    close_all(engine)


def test_a_held_session_may_lose_its_blocks() -> None:
    masks = ScriptedMasks()
    masks.delay_polls = 8
    engine = TargetEngine(
        make_runner(kv_cache_tokens=96), masks, EPOCH, clock=FakeClock(), mask_wait_s=0.5
    )
    old, young = random_prompt(1, 60), PROMPT + random_prompt(2, 40)
    submit_open(engine, "old")
    submit_open(engine, "young", constraint=CONSTRAINT, prompt_len=len(young))
    submit_verify(engine, 1, young, [], run_on=2, session_id="young")
    engine.step()
    submit_verify(engine, 1, old, [], session_id="old")
    engine.step()
    assert engine.load().num_preemptions == 1
    engine.close("old")
    text = text_of(drain(engine))
    assert len(text) == 3
    for i, token in enumerate(text):
        assert token in lowest_third(text[:i])
    close_all(engine)


def test_a_constrained_prompt_must_be_whole() -> None:
    engine = constrained(ScriptedMasks())
    submit_verify(engine, 1, PROMPT[:-1], [])
    (failed,) = drain(engine)
    assert (type(failed), failed.code) == (Failed, "invalid")
    close_all(engine)


def test_new_terms_take_over_the_tokens() -> None:
    text = plain_text(7)
    engine = constrained(ScriptedMasks())
    submit_verify(engine, 1, PROMPT, [], run_on=50)
    engine.step()
    moved = type(CONSTRAINT)(address="tcp://127.0.0.1:2", public_key="", epoch=4)
    submit_open(engine, constraint=moved, sampling=Sampling(seed=11))
    assert drain(engine) == []
    submit_verify(engine, 2, [*PROMPT, *text[:2]], text[2:4])
    (verdict,) = drain(engine)
    assert (verdict.num_accepted, verdict.token) == (2, text[4])
    close_all(engine)
