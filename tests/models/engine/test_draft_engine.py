"""The draft engine alone: what it drafts, where it stops, what it does with late masks."""

from typing import Any

import msgspec
import pytest
import torch
from msgspec import structs

from models.engine.draft import DraftEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Failed, Open, Proposal, Sampling, Verify
from tests.cases.kv_tokens import num_kv_tokens
from tests.cases.messages import proposing
from tests.fakes.engines import (
    CONSTRAINT,
    EOS_ID,
    EPOCH,
    FakeClock,
    ScriptedMasks,
    drain,
    lowest_third,
    make_draft,
    make_runner,
    random_prompt,
    reference_greedy,
)

pytestmark = pytest.mark.every_engine

PROMPT = random_prompt(1, 12)
by_steps_and_by_chains = pytest.mark.parametrize("chains", [False, True])


def submit_open(engine: DraftEngine, session_id: str = "s", **changes: Any) -> None:
    terms = {"sampling": Sampling(temperature=0), "eos_ids": [], "prompt_len": len(PROMPT)}
    engine.submit(Open(session_id=session_id, epoch=EPOCH, **(terms | changes)), "r")


def submit_propose(
    engine: DraftEngine,
    seq: int,
    ids: list[int],
    k: int,
    *,
    base_len: int = 0,
    session_id: str = "s",
    deadline_ms: float = 1e6,
) -> None:
    engine.submit(
        proposing(session_id, seq, ids, k, base_len=base_len, deadline_ms=deadline_ms), "r"
    )


def only_proposal(engine: DraftEngine) -> Proposal:
    (reply,) = drain(engine)
    assert isinstance(reply, Proposal)
    return reply


def close_all(engine: DraftEngine) -> None:
    for session_id in engine.idle_s():
        engine.close(session_id)
    pool = engine.runner.pool
    pool.check([])
    assert pool.num_free == pool.num_blocks


def test_it_drafts_what_the_model_says() -> None:
    engine = make_draft(noise=0.0)
    submit_open(engine)
    submit_propose(engine, 1, PROMPT, 5)
    proposal = only_proposal(engine)
    assert proposal.tokens == reference_greedy(PROMPT, 5)
    assert proposal.cut == ""
    assert proposal.step_ms > 0
    assert proposal.timing.num_sessions == 1
    close_all(engine)


def test_the_cache_lags_by_one_after_a_full_accept() -> None:
    engine = make_draft(noise=0.0)
    submit_open(engine)
    submit_propose(engine, 1, PROMPT, 3)
    first = only_proposal(engine).tokens
    assert num_kv_tokens(engine) == len(PROMPT) + 2
    text = reference_greedy(PROMPT, 7)
    committed = [*PROMPT, *first, text[3]]
    submit_propose(engine, 2, committed, 3, base_len=len(PROMPT) + 3)
    (replies,) = [engine.step()]  # the lagging token and the new one share the first step
    assert replies == []
    assert num_kv_tokens(engine) == len(committed)
    assert only_proposal(engine).tokens == text[4:7]
    close_all(engine)


@by_steps_and_by_chains
def test_a_rejection_rolls_back(chains: bool) -> None:
    engine = make_draft(noise=0.0)
    engine.chains = chains
    submit_open(engine)
    submit_propose(engine, 1, PROMPT, 4)
    drafted = only_proposal(engine).tokens
    other = (drafted[1] + 2) % EOS_ID
    submit_propose(engine, 2, [*PROMPT, drafted[0], other], 4, base_len=len(PROMPT) + 1)
    again = only_proposal(engine).tokens
    assert again == reference_greedy([*PROMPT, drafted[0], other], 4)
    close_all(engine)


def test_sessions_join_and_leave_between_steps() -> None:
    engine = make_draft(noise=0.0)
    prompts = [random_prompt(i, 4 + 9 * i) for i in range(4)]
    for i, prompt in enumerate(prompts):
        submit_open(engine, f"s{i}", prompt_len=len(prompt))
    submit_propose(engine, 1, prompts[0], 6, session_id="s0")
    engine.step()
    submit_propose(engine, 1, prompts[1], 2, session_id="s1")
    engine.step()
    submit_propose(engine, 1, prompts[2], 1, session_id="s2")
    submit_propose(engine, 1, prompts[3], 4, session_id="s3")
    proposals = {reply.session_id: reply for reply in drain(engine)}
    for i, k in enumerate([6, 2, 1, 4]):
        assert proposals[f"s{i}"].tokens == reference_greedy(prompts[i], k)
    assert max(p.timing.num_sessions for p in proposals.values()) > 1
    close_all(engine)


@by_steps_and_by_chains
def test_an_eos_ends_the_draft_and_is_part_of_it(chains: bool) -> None:
    expected = reference_greedy(PROMPT, 4)
    engine = make_draft(noise=0.0)
    engine.chains = chains
    submit_open(engine, eos_ids=[expected[2]])
    submit_propose(engine, 1, PROMPT, 6)
    proposal = only_proposal(engine)
    length = expected.index(expected[2]) + 1
    assert (proposal.tokens, proposal.cut) == (expected[:length], "eos")
    assert num_kv_tokens(engine) == len(PROMPT) + length - 1
    close_all(engine)


@by_steps_and_by_chains
def test_the_context_ends_the_draft(chains: bool) -> None:
    engine = make_draft(noise=0.0, max_model_len=len(PROMPT) + 2)
    engine.chains = chains
    submit_open(engine)
    submit_propose(engine, 1, PROMPT, 6)
    proposal = only_proposal(engine)
    assert (len(proposal.tokens), proposal.cut) == (2, "context")
    submit_propose(engine, 2, [*PROMPT, *proposal.tokens], 6)
    proposal = only_proposal(engine)
    assert (proposal.tokens, proposal.cut) == ([], "context")
    close_all(engine)


def test_a_draft_without_kv_blocks_is_empty_at_once() -> None:
    engine = make_draft(noise=0.0, kv_cache_tokens=32)
    old, young = random_prompt(1, 25), random_prompt(2, 20)
    submit_open(engine, "old")
    submit_open(engine, "young")
    submit_propose(engine, 1, old, 2, session_id="old")
    assert len(only_proposal(engine).tokens) == 2
    submit_propose(engine, 1, young, 2, session_id="young")
    proposal = only_proposal(engine)
    assert (proposal.tokens, proposal.cut) == ([], "starved")
    submit_propose(engine, 2, [*young, *random_prompt(3, 20)], 2, session_id="young")
    proposal = only_proposal(engine)
    assert (proposal.tokens, proposal.cut) == ([], "context")  # more than the whole pool holds
    close_all(engine)


def test_the_deadline_ends_the_draft() -> None:
    clock = FakeClock()
    engine = DraftEngine(make_runner(), NoMaskSource(), EPOCH, clock=clock)
    submit_open(engine)
    submit_propose(engine, 1, PROMPT, 50, deadline_ms=100.0)
    for _ in range(3):
        assert engine.step() == []
    clock.now += 0.1
    ((_, proposal),) = engine.step()
    assert (len(proposal.tokens), proposal.cut) == (3, "deadline")
    close_all(engine)


def test_a_newer_message_replaces_a_running_draft() -> None:
    engine = make_draft(noise=0.0)
    submit_open(engine)
    submit_propose(engine, 1, PROMPT, 50)
    engine.step()
    submit_propose(engine, 2, PROMPT, 1)
    assert only_proposal(engine).seq == 2
    close_all(engine)


def test_a_repeat_of_a_running_draft_restarts_nothing() -> None:
    engine = make_draft(noise=0.0)
    submit_open(engine)
    submit_propose(engine, 1, PROMPT, 4)
    engine.step()
    submit_propose(engine, 1, PROMPT, 4)
    first = only_proposal(engine)
    submit_propose(engine, 1, PROMPT, 4)
    assert only_proposal(engine) is first
    close_all(engine)


@pytest.mark.parametrize(
    ("ids", "k"), [([], 1), ([3], 0), ([-1], 1), ([256], 1)], ids=["empty", "k", "low", "high"]
)
def test_impossible_messages_fail_alone(ids: list[int], k: int) -> None:
    engine = make_draft(noise=0.0)
    submit_open(engine)
    submit_open(engine, "neighbour")
    submit_propose(engine, 1, ids, k)
    submit_propose(engine, 1, PROMPT, 2, session_id="neighbour")
    replies = {reply.session_id: reply for reply in drain(engine)}
    assert isinstance(replies["s"], Failed)
    assert replies["s"].code == "invalid"
    assert replies["neighbour"].tokens == reference_greedy(PROMPT, 2)
    close_all(engine)


def test_a_verify_is_refused() -> None:
    engine = make_draft(noise=0.0)
    submit_open(engine)
    header = {"session_id": "s", "epoch": EPOCH, "seq": 1, "base_len": 0, "prefix_hash": 0}
    engine.submit(Verify(**header, tokens=[1], draft=[], run_on=0), "r")
    assert isinstance(drain(engine)[0], Failed)
    close_all(engine)


def constrained(masks: ScriptedMasks, clock: FakeClock | None = None) -> DraftEngine:
    clock = clock or FakeClock()
    engine = DraftEngine(make_runner(), masks, EPOCH, clock=clock, mask_wait_s=0.02)
    submit_open(engine, constraint=CONSTRAINT, eos_ids=[EOS_ID], sampling=Sampling(seed=5))
    return engine


def test_drafts_obey_the_grammar() -> None:
    masks = ScriptedMasks()
    engine = constrained(masks)
    submit_propose(engine, 1, PROMPT, 20)
    proposal = only_proposal(engine)
    for i, token in enumerate(proposal.tokens):
        assert token in lowest_third(proposal.tokens[:i])
    assert (len(proposal.tokens), proposal.cut) == (7, "eos")
    # One question per step, each asked when its token was drawn; the last token needs none.
    assert [len(frame) for frame in masks.frames] == [1] * 7
    close_all(engine)


def test_a_late_mask_ends_the_draft() -> None:
    masks, clock = ScriptedMasks(), FakeClock()
    engine = constrained(masks, clock)
    submit_propose(engine, 1, PROMPT, 4)
    for _ in range(2):
        assert engine.step() == []
    masks.is_silent = True
    replies = []
    while not replies:
        replies = engine.step()
        clock.now += 0.005
    proposal = replies[0][1]
    assert proposal.cut == "mask_late"
    assert 1 <= len(proposal.tokens) <= 3
    assert proposal.timing.mask_ms == 0.0
    close_all(engine)


def test_a_mask_that_is_a_little_late_costs_only_time() -> None:
    masks = ScriptedMasks()
    masks.delay_polls = 4
    engine = constrained(masks)
    submit_propose(engine, 1, PROMPT, 4)
    slow = only_proposal(engine)
    assert len(slow.tokens) == 4
    masks.delay_polls = 0
    submit_propose(engine, 2, PROMPT, 4)
    assert only_proposal(engine).tokens == slow.tokens
    close_all(engine)


def test_a_draft_may_wait_longer_for_its_masks_than_the_engine_would() -> None:
    masks, clock = ScriptedMasks(), FakeClock()
    engine = constrained(masks, clock)
    message = proposing("s", 1, PROMPT, 4)
    engine.submit(msgspec.structs.replace(message, mask_wait_ms=1_000.0), "r")
    for _ in range(2):
        assert engine.step() == []
    masks.is_silent = True
    began, replies = clock.now, []
    while not replies:
        replies = engine.step()
        clock.now += 0.05
    assert replies[0][1].cut == "mask_late"
    assert 1.0 <= clock.now - began < 1.2
    masks.is_silent = False
    submit_propose(engine, 2, PROMPT, 4)  # which does not say how long
    masks.is_silent, began = True, clock.now
    while not engine.step():
        clock.now += 0.05
    assert clock.now - began < 0.2
    close_all(engine)


def test_waiting_for_a_mask_does_not_hold_up_others() -> None:
    masks = ScriptedMasks()
    masks.is_silent = True
    engine = constrained(masks)
    submit_open(engine, "free")
    submit_propose(engine, 1, PROMPT, 3)
    submit_propose(engine, 1, PROMPT, 3, session_id="free")
    replies = [reply for _ in range(3) for _, reply in engine.step()]
    assert [reply.session_id for reply in replies] == ["free"]
    close_all(engine)


@pytest.mark.parametrize("reason", ["unknown", "failed"])
def test_a_missing_mask_ends_the_draft(reason: str) -> None:
    masks = ScriptedMasks()
    masks.miss = reason
    engine = constrained(masks)
    submit_propose(engine, 1, PROMPT, 3)
    proposal = only_proposal(engine)
    assert (proposal.tokens, proposal.cut) == ([], "mask_missing")
    close_all(engine)


def test_a_mask_without_any_token_ends_the_draft() -> None:
    engine = constrained(ScriptedMasks(lambda tokens: {7} if len(tokens) < 2 else set()))
    submit_propose(engine, 1, PROMPT, 5)
    proposal = only_proposal(engine)
    assert (proposal.tokens, proposal.cut) == ([7, 7], "mask_missing")
    close_all(engine)


def test_draft_and_target_draw_with_the_same_noise() -> None:
    """A draft model equal to the target drafts what the target samples."""
    engine = make_draft(noise=0.0)
    submit_open(engine, sampling=Sampling(seed=3))
    submit_propose(engine, 1, PROMPT, 6)
    whole = only_proposal(engine).tokens
    submit_propose(engine, 2, [*PROMPT, *whole[:2]], 4)
    assert only_proposal(engine).tokens == whole[2:]
    assert torch.is_inference_mode_enabled() is False
    close_all(engine)


def test_texts_of_sessions_that_end_are_kept_where_somebody_wants_them():
    """Of a replay, under a grammar, or under a rule that has drafts noise of their own: none."""
    engine = make_draft()

    def run(name: str, **changes: Any) -> None:
        submit_open(engine, name, **changes)
        submit_propose(engine, 1, [*PROMPT, 7, 9], 2, session_id=name)
        drain(engine)
        engine.close(name)

    run("unwanted")
    engine.ended_texts.keep(is_on=True)
    run("kept")
    run("rejection", sampling=Sampling(temperature=1.0, verification="rejection"))
    run("no-answer", prompt_len=len(PROMPT) + 2)
    submit_open(engine, "replay")
    replayed = proposing("replay", 1, PROMPT, 3)
    engine.submit(structs.replace(replayed, guess=[7, 9], replays=True), "r")
    drain(engine)
    engine.close("replay")
    [text] = engine.ended_texts.take()
    assert text.opened.session_id == "kept"
    assert text.token_ids == [*PROMPT, 7, 9]
    assert engine.ended_texts.take() == []
    run("late")
    engine.ended_texts.keep(is_on=False)
    run("later")
    assert engine.ended_texts.take() == []


class TickingClock(FakeClock):
    """Seconds that pass with each look."""

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


@by_steps_and_by_chains
def test_drafts_of_a_moment_begin_together_once_they_have_met(chains: bool) -> None:
    clock = TickingClock()
    engine = DraftEngine(make_runner(), NoMaskSource(), EPOCH, clock=clock)
    engine.chains = chains
    waits = []
    for seq in (1, 2):
        for name in "ab":
            if seq == 1:
                submit_open(engine, name)
            submit_propose(engine, seq, PROMPT, 2, session_id=name)
            waits.append(engine.wait_s(clock.now))
        assert len(drain(engine)) == 2
    assert waits[:2] == [0.0, 0.0], "nobody was expected"
    assert waits[2] > 0.0, "the other one asks at the same time"
    assert waits[3] == 0.0, "all are there"
    close_all(engine)
