"""The target engine alone, with constrained sessions: masks that come, late or never."""

import pytest

from models.engine.target import TargetEngine
from models.grammar.masks import MaskSource
from models.protocol.messages import EngineReply, Failed, Sampling, Verdict
from tests.cases.target import PROMPT, text_of
from tests.fakes.engines import (
    CONSTRAINT,
    EOS_ID,
    EPOCH,
    FakeClock,
    ScriptedMasks,
    lowest_third,
    make_runner,
    random_prompt,
    reference_greedy,
)
from tests.models.engine.asked import AskedTarget, TargetOf

pytestmark = pytest.mark.every_engine

SEEDED = Sampling(seed=11)


def constrained(
    target_of: TargetOf, masks: MaskSource, clock: FakeClock | None = None
) -> AskedTarget:
    engine = TargetEngine(make_runner(), masks, EPOCH, clock=clock or FakeClock(), mask_wait_s=0.5)
    target = target_of(engine)
    target.open(constraint=CONSTRAINT, sampling=SEEDED)
    return target


@pytest.fixture
def text(target_of: TargetOf) -> list[int]:
    """Return the answer where nothing is drafted and no mask is late."""
    return text_of(constrained(target_of, ScriptedMasks()).ask(run_on=19))


def test_every_token_obeys_the_grammar(text: list[int]) -> None:
    assert text[-1] == EOS_ID
    assert len(text) == 7
    for i, token in enumerate(text):
        assert token in lowest_third(text[:i])


@pytest.mark.parametrize("delay_polls", [0, 1, 5])
def test_a_verify_asks_for_all_rows_at_once(
    target_of: TargetOf, text: list[int], delay_polls: int
) -> None:
    masks = ScriptedMasks()
    masks.delay_polls = delay_polls
    target = constrained(target_of, masks)
    target.send(PROMPT, text[:3], run_on=2)
    assert [(r.num_rows, r.chain) for frame in masks.frames for r in frame] == [(4, text[:3])]
    assert text_of(target.drain(), text) == text[:6]


def test_the_chain_starts_at_the_committed_tokens_of_the_matcher(
    target_of: TargetOf, text: list[int]
) -> None:
    masks = ScriptedMasks()
    target = constrained(target_of, masks)
    target.ask()
    masks.committed["s"].extend(text[:1])
    target.ask([*PROMPT, text[0]], text[1:3], base_len=len(PROMPT))
    last = target.ask([*PROMPT, *text[:4]], base_len=len(PROMPT) + 3)
    assert text_of(last) == [text[4]]
    assert masks.frames[-1][0].base_len == 1


def test_an_illegal_draft_token_ends_the_rows(target_of: TargetOf, text: list[int]) -> None:
    target = constrained(target_of, ScriptedMasks())
    illegal = next(token for token in range(EOS_ID) if token not in lowest_third(text[:2]))
    (verdict,) = target.ask(PROMPT, [*text[:2], illegal, text[3]])
    assert (verdict.num_accepted, verdict.token) == (2, text[2])


def test_rows_behind_a_drafted_eos_are_not_needed(target_of: TargetOf, text: list[int]) -> None:
    target = constrained(target_of, ScriptedMasks())
    (verdict,) = target.ask(PROMPT, [*text, 5], run_on=3)
    assert (verdict.num_accepted, verdict.token, verdict.is_last) == (6, EOS_ID, True)


@pytest.mark.parametrize("fault", ["silent", "unknown", "failed", "empty"])
def test_without_masks_there_is_no_token(target_of: TargetOf, fault: str) -> None:
    clock = FakeClock()
    masks = ScriptedMasks()
    masks.is_silent = fault == "silent"
    if fault == "empty":
        masks.rule = lambda tokens: set()
    elif fault != "silent":
        masks.miss = fault
    target = constrained(target_of, masks, clock)
    target.send(run_on=3)
    target.send(run_on=3, name="free")
    replies: list[EngineReply] = []
    while target.engine.has_work:
        replies += target.step()
        clock.now += 0.05
    assert len([reply for reply in replies if reply.session_id == "free"]) == 4
    (failed,) = [reply for reply in replies if reply.session_id == "s"]
    assert isinstance(failed, Failed)
    assert failed.code == "mask_unavailable"
    assert clock.now < 102.0
    masks.is_silent, masks.miss, masks.rule = False, "", lowest_third
    assert isinstance(target.ask()[0], Verdict)


def test_others_go_on_while_a_session_waits_for_its_mask(target_of: TargetOf) -> None:
    masks = ScriptedMasks()
    masks.is_silent = True
    target = constrained(target_of, masks)
    target.send()
    target.send(run_on=4, name="free")
    replies = [reply for _ in range(5) for reply in target.step()]
    assert text_of(replies) == reference_greedy(PROMPT, 5)


def test_a_held_session_may_lose_its_blocks(target_of: TargetOf) -> None:
    masks = ScriptedMasks()
    masks.delay_polls = 8
    runner = make_runner(kv_cache_tokens=96)
    engine = TargetEngine(runner, masks, EPOCH, clock=FakeClock(), mask_wait_s=0.5)
    target = target_of(engine)
    old, young = random_prompt(1, 60), PROMPT + random_prompt(2, 40)
    target.open("old")
    target.open("young", constraint=CONSTRAINT, prompt_len=len(young))
    target.send(young, run_on=2, name="young")
    engine.step()
    target.send(old, name="old")
    engine.step()
    assert engine.load().num_preemptions == 1
    engine.close("old")
    text = text_of(target.drain())
    assert len(text) == 3
    for i, token in enumerate(text):
        assert token in lowest_third(text[:i])


def test_a_constrained_prompt_must_be_whole(target_of: TargetOf) -> None:
    target = constrained(target_of, ScriptedMasks())
    (failed,) = target.ask(PROMPT[:-1])
    assert (type(failed), failed.code) == (Failed, "invalid")


def test_new_terms_take_over_the_tokens(target_of: TargetOf, text: list[int]) -> None:
    target = constrained(target_of, ScriptedMasks())
    target.send(run_on=50)
    target.step()
    moved = type(CONSTRAINT)(address="tcp://127.0.0.1:2", public_key="", epoch=4)
    target.open(constraint=moved, sampling=SEEDED)
    assert target.drain() == []
    (verdict,) = target.ask([*PROMPT, *text[:2]], text[2:4])
    assert (verdict.num_accepted, verdict.token) == (2, text[4])
