"""The draft engine alone: what it drafts, where it stops, what it does with late masks."""

from typing import Any

import pytest
import torch
from msgspec import structs

from models.engine.draft import DraftEngine
from models.grammar.masks import NoMaskSource
from models.protocol.messages import Failed, Sampling
from tests.cases.kv_tokens import num_kv_tokens
from tests.cases.messages import proposing, verifying
from tests.cases.target import PROMPT
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
from tests.models.engine.asked import AskedDraft, DraftOf, TickingClock

pytestmark = pytest.mark.every_engine

by_steps_and_by_chains = pytest.mark.parametrize("chains", [False, True])


def test_it_drafts_what_the_model_says(draft_of: DraftOf) -> None:
    draft = draft_of()
    proposal = draft.ask(PROMPT, 5)
    assert proposal.tokens == reference_greedy(PROMPT, 5)
    assert proposal.cut == ""
    assert proposal.step_ms > 0
    assert proposal.timing.num_sessions == 1


def test_the_cache_lags_by_one_after_a_full_accept(draft_of: DraftOf) -> None:
    draft = draft_of()
    first = draft.ask(PROMPT, 3).tokens
    assert num_kv_tokens(draft.engine) == len(PROMPT) + 2
    text = reference_greedy(PROMPT, 7)
    committed = [*PROMPT, *first, text[3]]
    draft.send(committed, 3, base_len=len(PROMPT) + 3)
    assert draft.step() == []  # the lagging token and the new one share the first step
    assert num_kv_tokens(draft.engine) == len(committed)
    assert draft.only_proposal().tokens == text[4:7]


@by_steps_and_by_chains
def test_a_rejection_rolls_back(draft_of: DraftOf, chains: bool) -> None:
    draft = draft_of()
    draft.engine.chains = chains
    drafted = draft.ask(PROMPT, 4).tokens
    other = (drafted[1] + 2) % EOS_ID
    again = draft.ask([*PROMPT, drafted[0], other], 4, base_len=len(PROMPT) + 1).tokens
    assert again == reference_greedy([*PROMPT, drafted[0], other], 4)


def test_sessions_join_and_leave_between_steps(draft_of: DraftOf) -> None:
    draft = draft_of()
    prompts = [random_prompt(i, 4 + 9 * i) for i in range(4)]
    draft.send(prompts[0], 6, name="s0")
    draft.engine.step()
    draft.send(prompts[1], 2, name="s1")
    draft.engine.step()
    draft.send(prompts[2], 1, name="s2")
    draft.send(prompts[3], 4, name="s3")
    proposals = {reply.session_id: reply for reply in draft.drain()}
    for i, k in enumerate([6, 2, 1, 4]):
        assert proposals[f"s{i}"].tokens == reference_greedy(prompts[i], k)
    assert max(p.timing.num_sessions for p in proposals.values()) > 1


@by_steps_and_by_chains
def test_an_eos_ends_the_draft_and_is_part_of_it(draft_of: DraftOf, chains: bool) -> None:
    expected = reference_greedy(PROMPT, 4)
    draft = draft_of()
    draft.engine.chains = chains
    draft.open(eos_ids=[expected[2]])
    proposal = draft.ask(PROMPT, 6)
    length = expected.index(expected[2]) + 1
    assert (proposal.tokens, proposal.cut) == (expected[:length], "eos")
    assert num_kv_tokens(draft.engine) == len(PROMPT) + length - 1


@by_steps_and_by_chains
def test_the_context_ends_the_draft(draft_of: DraftOf, chains: bool) -> None:
    draft = draft_of(max_model_len=len(PROMPT) + 2)
    draft.engine.chains = chains
    proposal = draft.ask(PROMPT, 6)
    assert (len(proposal.tokens), proposal.cut) == (2, "context")
    proposal = draft.ask([*PROMPT, *proposal.tokens], 6)
    assert (proposal.tokens, proposal.cut) == ([], "context")


def test_a_draft_without_kv_blocks_is_empty_at_once(draft_of: DraftOf) -> None:
    draft = draft_of(kv_cache_tokens=32)
    old, young = random_prompt(1, 25), random_prompt(2, 20)
    assert len(draft.ask(old, 2, name="old").tokens) == 2
    proposal = draft.ask(young, 2, name="young")
    assert (proposal.tokens, proposal.cut) == ([], "starved")
    proposal = draft.ask([*young, *random_prompt(3, 20)], 2, name="young")
    assert (proposal.tokens, proposal.cut) == ([], "context")  # more than the whole pool holds


def test_the_deadline_ends_the_draft(draft_of: DraftOf) -> None:
    clock = FakeClock()
    draft = draft_of(DraftEngine(make_runner(), NoMaskSource(), EPOCH, clock=clock))
    draft.send(PROMPT, 50, deadline_ms=100.0)
    for _ in range(3):
        assert draft.step() == []
    clock.now += 0.1
    (proposal,) = draft.step()
    assert (len(proposal.tokens), proposal.cut) == (3, "deadline")


def test_a_newer_message_replaces_a_running_draft(draft_of: DraftOf) -> None:
    draft = draft_of()
    draft.send(PROMPT, 50)
    draft.step()
    assert draft.ask(PROMPT, 1).seq == 2


def test_a_repeat_of_a_running_draft_restarts_nothing(draft_of: DraftOf) -> None:
    draft = draft_of()
    draft.send(PROMPT, 4)
    draft.step()
    first = draft.ask(PROMPT, 4, seq=1)
    assert draft.ask(PROMPT, 4, seq=1) is first


@pytest.mark.parametrize(
    ("ids", "k"), [([], 1), ([3], 0), ([-1], 1), ([256], 1)], ids=["empty", "k", "low", "high"]
)
def test_impossible_messages_fail_alone(draft_of: DraftOf, ids: list[int], k: int) -> None:
    draft = draft_of()
    draft.open()
    draft.send(ids, k)
    draft.send(PROMPT, 2, name="neighbour")
    replies = {reply.session_id: reply for reply in draft.drain()}
    assert isinstance(replies["s"], Failed)
    assert replies["s"].code == "invalid"
    assert replies["neighbour"].tokens == reference_greedy(PROMPT, 2)


def test_a_verify_is_refused(draft_of: DraftOf) -> None:
    draft = draft_of()
    draft.open()
    draft.engine.submit(verifying("s", 1, PROMPT, []), "r")
    assert isinstance(draft.drain()[0], Failed)


def constrained(
    draft_of: DraftOf, masks: ScriptedMasks, clock: FakeClock | None = None
) -> AskedDraft:
    clock = clock or FakeClock()
    draft = draft_of(DraftEngine(make_runner(), masks, EPOCH, clock=clock, mask_wait_s=0.02))
    draft.open(constraint=CONSTRAINT, eos_ids=[EOS_ID], sampling=Sampling(seed=5))
    return draft


def test_drafts_obey_the_grammar(draft_of: DraftOf) -> None:
    masks = ScriptedMasks()
    draft = constrained(draft_of, masks)
    proposal = draft.ask(PROMPT, 20)
    for i, token in enumerate(proposal.tokens):
        assert token in lowest_third(proposal.tokens[:i])
    assert (len(proposal.tokens), proposal.cut) == (7, "eos")
    # One question per step, each asked when its token was drawn; the last token needs none.
    assert [len(frame) for frame in masks.frames] == [1] * 7


def test_a_late_mask_ends_the_draft(draft_of: DraftOf) -> None:
    masks, clock = ScriptedMasks(), FakeClock()
    draft = constrained(draft_of, masks, clock)
    draft.send(PROMPT, 4)
    for _ in range(2):
        assert draft.step() == []
    masks.is_silent = True
    replies = []
    while not replies:
        replies = draft.step()
        clock.now += 0.005
    (proposal,) = replies
    assert proposal.cut == "mask_late"
    assert 1 <= len(proposal.tokens) <= 3
    assert proposal.timing.mask_ms == 0.0


def test_a_mask_that_is_a_little_late_costs_only_time(draft_of: DraftOf) -> None:
    masks = ScriptedMasks()
    masks.delay_polls = 4
    draft = constrained(draft_of, masks)
    slow = draft.ask(PROMPT, 4)
    assert len(slow.tokens) == 4
    masks.delay_polls = 0
    assert draft.ask(PROMPT, 4).tokens == slow.tokens


def test_a_draft_may_wait_longer_for_its_masks_than_the_engine_would(draft_of: DraftOf) -> None:
    masks, clock = ScriptedMasks(), FakeClock()
    draft = constrained(draft_of, masks, clock)
    message = structs.replace(proposing("s", 1, PROMPT, 4), mask_wait_ms=1_000.0)
    draft.engine.submit(message, "r")
    for _ in range(2):
        assert draft.step() == []
    masks.is_silent = True
    began, replies = clock.now, []
    while not replies:
        replies = draft.step()
        clock.now += 0.05
    assert replies[0].cut == "mask_late"
    assert 1.0 <= clock.now - began < 1.2
    masks.is_silent = False
    draft.send(PROMPT, 4, seq=2)  # which does not say how long
    masks.is_silent, began = True, clock.now
    while not draft.step():
        clock.now += 0.05
    assert clock.now - began < 0.2


def test_waiting_for_a_mask_does_not_hold_up_others(draft_of: DraftOf) -> None:
    masks = ScriptedMasks()
    masks.is_silent = True
    draft = constrained(draft_of, masks)
    draft.send(PROMPT, 3)
    draft.send(PROMPT, 3, name="free")
    replies = [reply for _ in range(3) for reply in draft.step()]
    assert [reply.session_id for reply in replies] == ["free"]


@pytest.mark.parametrize(
    ("reason", "tokens"), [("unknown", []), ("failed", []), ("", [7, 7])], ids=str
)
def test_a_missing_mask_or_one_without_any_token_ends_the_draft(
    draft_of: DraftOf, reason: str, tokens: list[int]
) -> None:
    masks = ScriptedMasks(lambda generated: {7} if len(generated) < 2 else set())
    masks.miss = reason
    proposal = constrained(draft_of, masks).ask(PROMPT, 5)
    assert (proposal.tokens, proposal.cut) == (tokens, "mask_missing")


def test_draft_and_target_draw_with_the_same_noise(draft_of: DraftOf) -> None:
    """A draft model equal to the target drafts what the target samples."""
    draft = draft_of()
    draft.open(sampling=Sampling(seed=3))
    whole = draft.ask(PROMPT, 6).tokens
    assert draft.ask([*PROMPT, *whole[:2]], 4).tokens == whole[2:]
    assert torch.is_inference_mode_enabled() is False


def test_texts_of_sessions_that_end_are_kept_where_somebody_wants_them(draft_of: DraftOf) -> None:
    """Of a replay, under a grammar, or under a rule that has drafts noise of their own: none."""
    draft = draft_of(noise=0.01)
    engine = draft.engine

    def run(name: str, **changes: Any) -> None:
        draft.open(name, **changes)
        draft.ask([*PROMPT, 7, 9], 2, name=name)
        engine.close(name)

    run("unwanted")
    engine.ended_texts.keep(is_on=True)
    run("kept")
    run("rejection", sampling=Sampling(temperature=1.0, verification="rejection"))
    run("no-answer", prompt_len=len(PROMPT) + 2)
    draft.open("replay")
    replayed = proposing("replay", 1, PROMPT, 3)
    engine.submit(structs.replace(replayed, guess=[7, 9], replays=True), "r")
    draft.drain()
    engine.close("replay")
    [text] = engine.ended_texts.take()
    assert text.opened.session_id == "kept"
    assert text.token_ids == [*PROMPT, 7, 9]
    assert engine.ended_texts.take() == []
    run("late")
    engine.ended_texts.keep(is_on=False)
    run("later")
    assert engine.ended_texts.take() == []


@by_steps_and_by_chains
def test_drafts_of_a_moment_begin_together_once_they_have_met(
    draft_of: DraftOf, chains: bool
) -> None:
    clock = TickingClock(0.001)
    draft = draft_of(DraftEngine(make_runner(), NoMaskSource(), EPOCH, clock=clock))
    draft.engine.chains = chains
    waits = []
    for _ in range(2):
        for name in "ab":
            draft.send(PROMPT, 2, name=name)
            waits.append(draft.engine.wait_s(clock.now))
        assert len(draft.drain()) == 2
    assert waits[:2] == [0.0, 0.0], "nobody was expected"
    assert waits[2] > 0.0, "the other one asks at the same time"
    assert waits[3] == 0.0, "all are there"
