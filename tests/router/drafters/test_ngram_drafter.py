"""Prompt lookup against a brute-force search of the whole text."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.protocol.messages import Proposal
from models.protocol.token_sequence import TokenSequence
from router.drafters.ngram import NgramDrafter


def drafted(drafter: NgramDrafter, committed: TokenSequence, k: int) -> list[int]:
    """Short texts are drafted for without a single wait, so no event loop is needed."""
    proposing = drafter.propose(committed, k)
    with pytest.raises(StopIteration) as done:
        proposing.send(None)
    proposal: Proposal = done.value.value
    return proposal.tokens


def by_search(ids: Sequence[int], k: int, min_len: int, max_len: int) -> list[int]:
    """The rule in plain words: longest n-gram first, its latest earlier place, what followed."""
    for length in range(max_len, min_len - 1, -1):
        wanted = list(ids[-length:])
        for end in range(len(ids) - 1, length - 1, -1):
            if length < len(ids) and list(ids[end - length : end]) == wanted:
                text = list(ids)
                for offset in range(k):
                    text.append(text[end + offset])
                return text[len(ids) :]
    return []


@settings(deadline=None)  # the machine may be busy
@given(
    ids=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    steps=st.lists(st.integers(1, 9), max_size=12),
    k=st.integers(1, 8),
    min_len=st.integers(1, 4),
    further=st.integers(0, 3),
)
def test_a_proposal_is_what_a_search_of_the_whole_text_finds(
    ids: list[int], steps: list[int], k: int, min_len: int, further: int
) -> None:
    """Whatever the sizes of the rounds in which the text was committed."""
    max_len = min_len + further
    drafter = NgramDrafter("s", min_len=min_len, max_len=max_len)
    committed = TokenSequence(ids[:1])
    for step in [*steps, len(ids)]:
        committed.extend(ids[len(committed) : len(committed) + step])
        assert drafted(drafter, committed, k) == by_search(committed.ids, k, min_len, max_len)


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 2, 3, 9, 1, 2], [3, 9, 1, 2]),
        ([1, 2, 3, 1, 2, 4, 1, 2], [4, 1, 2, 4]),
        ([5, 1, 2, 3, 2, 9, 1, 2], [3, 2, 9, 1]),
        ([7, 7], [7, 7, 7, 7]),
        ([1, 2, 1, 2, 1], [2, 1, 2, 1]),
        ([1, 2, 3], []),
        ([4], []),
    ],
    ids=["follows", "latest", "longest", "period-1", "period-2", "no-match", "one-token"],
)
def test_what_is_proposed(ids: list[int], expected: list[int]) -> None:
    drafter = NgramDrafter("s", min_len=1, max_len=3)
    assert drafted(drafter, TokenSequence(ids), 4) == expected


def test_shorter_n_grams_than_the_shortest_are_not_matched() -> None:
    ids = TokenSequence([1, 2, 3, 9, 8, 2, 3])
    assert drafted(NgramDrafter("s", min_len=2, max_len=4), ids, 2) == [9, 8]
    assert drafted(NgramDrafter("s", min_len=3, max_len=4), ids, 2) == []


@pytest.mark.parametrize(
    ("eos_ids", "expected", "cut"),
    [((), [3, 0, 4, 1], ""), ((0,), [3], "eos"), ((3,), [], "eos"), ((9,), [3, 0, 4, 1], "")],
)
async def test_a_draft_ends_before_an_eos(
    eos_ids: tuple[int, ...], expected: list[int], cut: str
) -> None:
    drafter = NgramDrafter("s", min_len=1, max_len=3, eos_ids=eos_ids)
    proposal = await drafter.propose(TokenSequence([1, 2, 3, 0, 4, 1, 2]), 4)
    assert proposal.tokens == expected
    assert proposal.cut == cut
    assert proposal.draft_probs is None
    assert proposal.step_ms == 0.0


async def test_a_long_prompt_is_indexed_once_and_lets_others_go_on() -> None:
    """Counted in turns of the event loop, not in time."""
    committed = TokenSequence(range(10_000))
    drafter = NgramDrafter("s", min_len=1, max_len=4)
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    assert (await drafter.propose(committed, 4)).tokens == []
    assert turns >= 9
    committed.extend([500])
    turns = 0
    assert (await drafter.propose(committed, 4)).tokens == [501, 502, 503, 504]
    assert turns == 0, "a new token is one step"
    other.cancel()
