"""A guess of what the draft model will say: the same proposal as without it, in fewer passes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from models.engine.draft import DraftEngine
from models.grammar.masks import MaskSource, NoMaskSource
from models.protocol.messages import MAX_DRAFT_TOKENS, Failed, Proposal, Sampling
from models.protocol.token_sequence import TokenSequence
from tests.cases.target import PROMPT
from tests.fakes.engines import (
    CONSTRAINT,
    EOS_ID,
    EPOCH,
    VOCAB_SIZE,
    ScriptedMasks,
    make_runner,
    random_prompt,
)
from tests.models.engine.asked import AskedDraft, rows_of_passes

pytestmark = pytest.mark.every_engine

K = 6
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "sampled": Sampling(temperature=1.0, seed=5),
    "rejection": Sampling(temperature=1.0, seed=5, verification="rejection"),
    "penalties": Sampling(temperature=0.9, seed=3, presence_penalty=1.0, repetition_penalty=1.3),
    "rules": Sampling(temperature=1.2, seed=4, min_tokens=4, bad_words=((7,), (8, 9))),
}


class Guided(AskedDraft):
    """A draft model that is asked with guesses, and what its passes held."""

    def __init__(self, masks: MaskSource | None = None, **limits: Any) -> None:
        super().__init__(DraftEngine(make_runner(**limits), masks or NoMaskSource(), EPOCH))
        self.passes: list[int] = []  # rows of each

    def draft(
        self, sampling: Sampling, ids: Sequence[int], guess: Sequence[int] = (), k: int = K, **terms
    ) -> Proposal:
        self.submit("s", sampling, ids, guess, k, **terms)
        return self.only_proposal()

    def submit(
        self,
        name: str,
        sampling: Sampling,
        ids: Sequence[int],
        guess: Sequence[int],
        k: int,
        **terms,
    ) -> None:
        self.open(name, sampling=sampling, **terms)
        self.send(ids, k, name=name, guess=guess)

    def drain(self) -> list:
        with pytest.MonkeyPatch.context() as patch:
            passes = rows_of_passes(self.engine.runner, patch)
            replies = super().drain()
        self.passes += map(sum, passes)
        return replies


def other(token_id: int) -> int:
    return (token_id + 1) % EOS_ID


def guesses(tokens: list[int]) -> dict[str, list[int]]:
    return {
        "right": tokens[:-1],
        "first": tokens[:1],
        "wrong": [other(tokens[0]), *tokens[1:]],
        "partly": [*tokens[:3], other(tokens[3]), *tokens[4:]],
        "too long": [*tokens, *random_prompt(9, 20)],
    }


def said(proposal: Proposal) -> tuple:
    return proposal.tokens, proposal.draft_probs, proposal.cut


@pytest.mark.parametrize("kind", guesses(list(range(K))))
@pytest.mark.parametrize("name", SAMPLINGS)
def test_no_guess_changes_the_proposal(name: str, kind: str) -> None:
    sampling = SAMPLINGS[name]
    plain = Guided().draft(sampling, PROMPT)
    assert len(plain.tokens) == K
    asked = Guided()
    assert said(asked.draft(sampling, PROMPT, guesses(plain.tokens)[kind])) == said(plain)
    # The cache goes on as it would have: the next round, over all that was drafted, is the same.
    text = [*PROMPT, *plain.tokens]
    assert said(asked.draft(sampling, text)) == said(Guided().draft(sampling, text))


def test_each_right_token_saves_a_pass() -> None:
    plain = Guided()
    tokens = plain.draft(SAMPLINGS["greedy"], PROMPT).tokens
    assert len(plain.passes) == K
    for kind, num_passes in {
        "right": 1,
        "first": K - 1,
        "wrong": K,
        "partly": K - 3,
        "too long": 1,
    }.items():
        asked = Guided()
        asked.draft(SAMPLINGS["greedy"], PROMPT, guesses(tokens)[kind])
        assert len(asked.passes) == num_passes, kind
    assert asked.passes == [len(PROMPT) + K - 1]  # the last token of the draft needs no row


def test_sessions_with_and_without_a_guess_share_their_passes() -> None:
    prompts = {f"s{i}": random_prompt(i, 12) for i in range(4)}
    sampling = SAMPLINGS["sampled"]
    alone = {name: Guided().draft(sampling, ids).tokens for name, ids in prompts.items()}
    asked = Guided()
    for name, ids in prompts.items():  # then all of them are in step
        asked.submit(name, sampling, ids, (), 1)
        asked.drain()
    asked.passes.clear()
    kinds = ("right", "partly", "wrong")
    for name, kind in zip(prompts, kinds, strict=False):
        asked.submit(name, sampling, prompts[name], guesses(alone[name])[kind], K)
    asked.submit("s3", sampling, prompts["s3"], (), K)
    assert {reply.session_id: reply.tokens for reply in asked.drain()} == alone
    assert len(asked.passes) == K


@pytest.mark.parametrize("name", ["greedy", "sampled", "rejection"])
@pytest.mark.parametrize("kind", ["right", "partly", "wrong", "illegal", "eos"])
def test_guesses_obey_the_masks_of_their_positions(name: str, kind: str) -> None:
    def ask(guess: Sequence[int], delay: int = 0) -> tuple:
        masks = ScriptedMasks()
        masks.committed["s"] = TokenSequence()
        masks.delay_polls = delay
        asked = Guided(masks)
        return said(asked.draft(SAMPLINGS[name], PROMPT, guess, constraint=CONSTRAINT, k=8))

    plain = ask(())
    tokens = plain[0]
    assert [token % 3 for token in tokens[:4]] == [0, 1, 2, 0]
    changed = {
        "illegal": [*tokens[:2], tokens[2] + 1, *tokens[3:]],
        "eos": [tokens[0], EOS_ID, *tokens[2:]],
    }
    for delay in (0, 2):
        assert ask((guesses(tokens) | changed)[kind], delay) == plain


def test_an_eos_ends_the_draft_within_a_guess() -> None:
    tokens = Guided().draft(SAMPLINGS["greedy"], PROMPT).tokens
    ends = tokens[3]
    plain = Guided().draft(SAMPLINGS["greedy"], PROMPT, eos_ids=[ends])
    asked = Guided()
    guided = asked.draft(SAMPLINGS["greedy"], PROMPT, tokens[:-1], eos_ids=[ends])
    assert said(guided) == said(plain)
    assert (guided.cut, len(asked.passes)) == ("eos", 1)


@pytest.mark.parametrize("room", range(4))
def test_the_context_ends_the_draft_where_it_did(room: int) -> None:
    tokens = Guided().draft(SAMPLINGS["greedy"], PROMPT).tokens
    limit = len(PROMPT) + room
    plain = Guided(max_model_len=limit).draft(SAMPLINGS["greedy"], PROMPT)
    assert said(Guided(max_model_len=limit).draft(SAMPLINGS["greedy"], PROMPT, tokens)) == said(
        plain
    )
    assert (plain.cut, len(plain.tokens)) == ("context", room)


def test_without_room_for_its_rows_the_guess_goes_and_the_draft_stays() -> None:
    prompt = random_prompt(3, 30)
    tokens = Guided().draft(SAMPLINGS["greedy"], prompt).tokens
    plain = Guided(kv_cache_tokens=32).draft(SAMPLINGS["greedy"], prompt)
    asked = Guided(kv_cache_tokens=32)
    assert said(asked.draft(SAMPLINGS["greedy"], prompt, tokens)) == said(plain)
    assert len(plain.tokens) == 3
    assert len(asked.passes) == 3


def test_a_pass_of_few_rows_shortens_the_guess() -> None:
    tokens = Guided().draft(SAMPLINGS["greedy"], PROMPT).tokens
    asked = Guided(max_num_batched_tokens=4)
    assert asked.draft(SAMPLINGS["greedy"], PROMPT, tokens).tokens == tokens
    assert max(asked.passes) <= 4
    asked = Guided(max_num_batched_tokens=1)
    assert asked.draft(SAMPLINGS["greedy"], PROMPT, tokens).tokens == tokens


@pytest.mark.parametrize(
    ("guess", "words"),
    [
        ([1] * (MAX_DRAFT_TOKENS + 1), f"at most {MAX_DRAFT_TOKENS} tokens, got 65"),
        ([VOCAB_SIZE], f"0..{VOCAB_SIZE - 1}"),
        ([-1], f"0..{VOCAB_SIZE - 1}"),
    ],
)
def test_a_guess_that_no_draft_can_be_is_refused(guess: list[int], words: str) -> None:
    asked = Guided()
    asked.submit("s", SAMPLINGS["greedy"], PROMPT, guess, K)
    (reply,) = asked.drain()
    assert isinstance(reply, Failed)
    assert (reply.code, words in reply.message) == ("invalid", True)
