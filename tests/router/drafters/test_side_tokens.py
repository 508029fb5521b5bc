"""Tokens beside a draft model's drafts: which are sent, what they bring, what is learnt of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import msgspec
import pytest

from models.protocol.messages import Grammar, Proposal, Sampling
from models.protocol.token_sequence import TokenSequence
from router.drafters.chain import NUM_RANKS
from router.drafters.choice import max_side_tokens
from router.limits import SpeculationLimits
from router.loop import run_session
from router.ports import DrafterTraits
from router.session import Session
from router.types import GenerationRequest
from tests.fakes.router import ScriptedDrafter, ScriptedVerifier, continuation
from tests.router.drafters.test_chain import (
    PROMPT,
    Planned,
    Sure,
    SureDrafter,
    session,
    text_of,
)

RATES = (0.5, 0.2, 0.1)


class Ranking(ScriptedDrafter):
    """Names three candidates beside each token; where that is wrong the true one is of `rank`."""

    def __init__(self, pattern: Sequence[int | None], rank: int | None = 0) -> None:
        super().__init__(pattern)
        self.rank = rank
        self.num_ranks: list[int] = []

    async def propose_with(
        self,
        committed: TokenSequence,
        num_draft_tokens: int,
        guess: Sequence[int],
        num_ranks: int = 1,
    ) -> Proposal:
        self.num_ranks.append(num_ranks)
        proposal = await self.propose(committed, num_draft_tokens)
        truth = continuation(committed.ids, len(proposal.tokens))
        candidates = []
        for token, true in zip(proposal.tokens, truth, strict=True):
            ids = [100, 101, 102]
            if self.rank is not None and token != true:
                ids[self.rank] = true
            candidates.append(ids[: num_ranks - 1])
        return msgspec.structs.replace(proposal, candidates=candidates)


class Learning(Planned):
    """Notes what it is told of candidates."""

    def __init__(self, k: int, min_survival: float = 0.05) -> None:
        super().__init__(k, min_survival)
        self.ranks: list[tuple[str, int | None]] = []

    def observe_beside(self, drafter: DrafterTraits, rank: int | None) -> None:
        self.ranks.append((drafter.name, rank))


def halves(drafter: DrafterTraits, num: int) -> list[float]:
    """Each token is accepted in half of the cases in which those before it are."""
    return [0.5 ** (j + 1) for j in range(num)]


def drafting(planner: Planned, model: ScriptedDrafter, most: int = 8, **parts: object) -> Session:
    return session(
        planner,
        model=model,
        survival=halves,
        max_side_tokens=lambda: most,
        beside=lambda drafter: RATES,
        **parts,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize(
    ("price", "most", "expected"),
    [
        (0.3, 8, []),
        (0.2, 8, [(0, 100)]),  # wrong in half of the cases, and then right in half
        (0.12, 8, [(0, 100), (1, 100)]),
        (0.09, 8, [(0, 100), (1, 100), (0, 101)]),
        (0.05, 8, [(0, 100), (1, 100), (0, 101), (2, 100), (0, 102), (1, 101)]),
        (0.05, 2, [(0, 100), (1, 100)]),
        (0.05, 0, []),
    ],
)
async def test_the_likeliest_that_are_worth_a_row_are_sent(
    price: float, most: int, expected: list[tuple[int, int]]
) -> None:
    model = Ranking([None])
    asked = await drafting(Planned(3, price), model, most).drafting.next_round(40)
    assert list(asked.side_tokens) == expected
    assert model.num_ranks == ([NUM_RANKS] if most else [])
    assert asked.draft == continuation(PROMPT, 3)


async def test_they_are_at_the_places_of_the_model_that_named_them() -> None:
    parts = drafting(Learning(2, 0.12), Ranking([None]), front=Sure(2), behind=SureDrafter(2))
    asked = await parts.drafting.next_round(40)
    assert [segment.num_tokens for segment in asked.segments] == [2, 2, 2]
    assert list(asked.side_tokens) == [(2, 100), (3, 100)]
    assert [len(ids) for ids in asked.candidates] == [0, 0, 3, 3]
    assert asked.drafter_at(3).name == "draft_model"
    assert (asked.drafter_at(1).name, asked.drafter_at(4).name) == ("front", "ngram")
    with pytest.raises(ValueError, match="the draft has 6 tokens, none at place 6"):
        asked.drafter_at(6)


@pytest.mark.parametrize("rank", [None, 0, 1, 2])
@pytest.mark.parametrize("pattern", [[None], [0], [1, None], [2, 0]], ids=str)
async def test_they_change_no_text(pattern: list[int | None], rank: int | None) -> None:
    verifier = ScriptedVerifier()
    parts = drafting(Planned(3, 0.01), Ranking(pattern, rank), verifier=verifier)
    assert await text_of(parts) == continuation(PROMPT, 40)
    assert any(verifier.side_tokens)


async def test_each_that_is_accepted_saves_what_a_chain_brings_later() -> None:
    num_rounds = []
    for rank in (None, 0):
        verifier = ScriptedVerifier()
        parts = drafting(Planned(3, 0.01), Ranking([1], rank), verifier=verifier, max_tokens=30)
        await text_of(parts)
        num_rounds.append(len(verifier.rounds))
    # A round brings an accepted token and the target's, or a token beside the draft as well.
    assert num_rounds == [15, 10]


async def test_they_are_counted_as_drafts_of_the_model() -> None:
    parts = drafting(Planned(3, 0.2), Ranking([1]), max_tokens=7)
    drafted = 0
    async for delta in run_session(parts):
        drafted += delta.num_draft_tokens
    stats = parts.watch.stats.snapshot()
    # 3, 3 and 2 tokens with one beside each; then one token is wanted, and nothing drafted for it.
    assert stats.num_drafted_by == {"draft_model": 11}
    assert stats.num_accepted_by == {"draft_model": 3}  # the first of each draft
    assert stats.per_step_drafted == (4, 4, 3)
    assert stats.per_step_accepted == (1, 1, 1)
    assert drafted == stats.num_draft_tokens == 11


async def test_and_so_are_those_that_are_accepted() -> None:
    parts = drafting(Planned(3, 0.2), Ranking([0]), max_tokens=7)
    await text_of(parts)
    stats = parts.watch.stats.snapshot()
    assert stats.num_accepted_by == {"draft_model": 3}  # the one beside the first of each draft
    assert stats.per_step_drafted == (4, 4, 3)
    assert stats.per_step_accepted == (1, 1, 1)
    assert stats.acceptance_histogram == (0, 3, 0, 0, 0)


@pytest.mark.parametrize("price", [0.01, 9.0], ids=["sent", "not sent"])
@pytest.mark.parametrize("rank", [None, 0, 2])
async def test_ranks_are_learnt_of_each_wrong_token_whatever_is_sent(
    price: float, rank: int | None
) -> None:
    planner = Learning(3, price)
    parts = drafting(planner, Ranking([None, 1], rank), max_tokens=12)
    await text_of(parts)
    # Rounds of 4 tokens, which say nothing, and such as have their second token wrong.
    assert planner.ranks
    assert set(planner.ranks) == {("draft_model", rank)}


async def test_nothing_is_learnt_where_the_target_says_what_was_drafted() -> None:
    planner = Learning(3)
    await text_of(drafting(planner, Ranking([None]), max_tokens=20))
    assert planner.ranks == []


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, 8),
        ({"temperature": 0.0}, 8),
        ({"temperature": 0.0, "verification": "rejection"}, 8),  # greedy is greedy
        ({"verification": "rejection"}, 0),
    ],
)
def test_which_sessions_may_have_them(changes: dict[str, object], expected: int) -> None:
    sampling = msgspec.structs.replace(Sampling(), **changes)
    request = GenerationRequest(
        request_id="r", prompt_ids=tuple(PROMPT), sampling=sampling, eos_ids=(0,), max_tokens=9
    )
    assert max_side_tokens(request, SpeculationLimits(), None) == expected
    assert max_side_tokens(request, SpeculationLimits(), 4) == 0, "a fixed k is of chains"
    off = SpeculationLimits(max_num_side_tokens=0)
    assert max_side_tokens(request, off, None) == 0
    grammar = Grammar(kind="regex", text="[a-z]+")
    constrained = dataclasses.replace(request, grammar=grammar)
    assert max_side_tokens(constrained, SpeculationLimits(), None) == 0
