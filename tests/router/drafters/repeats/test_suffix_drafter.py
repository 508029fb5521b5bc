"""The suffix drafter: what it drafts from, how it learns its own odds, what sessions share."""

from __future__ import annotations

import asyncio
import random

import pytest

from models.protocol.token_sequence import TokenSequence
from router.drafters.repeats.match_odds import MatchOdds, OddsPool, cells
from router.drafters.repeats.suffix import SuffixDrafter
from router.drafters.repeats.suffix_index import MatchTerms, SuffixIndex
from router.drafters.repeats.text_memory import TextMemory
from router.ports import FreeDraft

TERMS = MatchTerms(max_spec_factor=4.0)


def drafter_of(
    ids: list[int],
    *others: SuffixIndex,
    eos_ids: tuple[int, ...] = (),
    pool: OddsPool | None = None,
) -> tuple[SuffixDrafter, TokenSequence]:
    committed = TokenSequence(ids)
    odds = MatchOdds(pool or OddsPool())
    return (
        SuffixDrafter("s", committed, TERMS, odds, others=lambda: others, eos_ids=eos_ids),
        committed,
    )


def text(*token_ids: int) -> SuffixIndex:
    index = SuffixIndex()
    index.extend(token_ids)
    index.end_text()
    return index


def test_a_draft_comes_with_falling_survival() -> None:
    drafter, committed = drafter_of([1, 2, 3, 4, 5, 6, 1, 2, 3])
    draft = drafter.look(committed, 3)
    assert draft.tokens == [4, 5, 6]
    assert len(draft.survival) == 3
    assert 1.0 > draft.survival[0] > draft.survival[1] > draft.survival[2] > 0.0


def test_a_longer_match_elsewhere_is_taken() -> None:
    drafter, committed = drafter_of([3, 9, 1, 2, 3], text(0, 1, 2, 3, 7, 8), text(3, 5))
    assert drafter.look(committed, 2).tokens == [7, 8]


def test_it_goes_on_behind_tokens_that_are_not_committed_and_back() -> None:
    drafter, committed = drafter_of([1, 2, 3, 4, 5, 6, 1, 2])
    assert drafter.look(committed.followed_by([3, 4]), 2).tokens == [5, 6]
    assert drafter.look(committed, 2).tokens == [3, 4]
    committed.extend([3, 9])
    assert drafter.look(committed.followed_by([1, 2]), 2).tokens == [3, 9]


@pytest.mark.parametrize(("eos_ids", "expected"), [((), [4, 5]), ((5,), [4]), ((4,), [])])
def test_a_draft_ends_before_an_eos(eos_ids: tuple[int, ...], expected: list[int]) -> None:
    drafter, committed = drafter_of([1, 2, 3, 4, 5, 6, 1, 2, 3], eos_ids=eos_ids)
    assert list(drafter.look(committed, 2).tokens) == expected


def test_without_a_match_there_is_no_draft() -> None:
    drafter, committed = drafter_of([1, 2, 3])
    assert drafter.look(committed, 4) == FreeDraft()
    assert drafter.look(committed, 0) == FreeDraft()


async def test_a_long_prompt_is_read_in_turns_with_others() -> None:
    """Counted in turns of the event loop, not in time; a look does not wait for it."""
    drafter, committed = drafter_of([*range(10_000), 17])
    assert drafter.look(committed, 2) == FreeDraft()
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(others())
    assert (await drafter.propose(committed, 2)).tokens == [18, 19]
    assert turns >= 8
    other.cancel()


@pytest.mark.parametrize("accuracy", [0.2, 0.6, 0.95])
def test_survival_is_learnt_from_the_text_alone(accuracy: float) -> None:
    """Patterns of eight tokens, each of which goes on as before with a known probability."""
    rng = random.Random(5)
    drafter, committed = drafter_of([])
    drafted = right = 0
    expected = 0.0
    for step in range(3000):
        draft = drafter.look(committed, 1) if step else FreeDraft()
        goes_on = rng.random() < accuracy
        token = step % 8 if goes_on else 100 + rng.randrange(50)
        if draft.tokens and step > 1000:
            drafted += 1
            expected += draft.survival[0]
            right += draft.tokens[0] == token
        committed.extend([token])
    assert drafted > 100
    assert expected / drafted == pytest.approx(right / drafted, abs=0.08)


def test_what_followed_a_tail_that_did_not_stand_teaches_nothing() -> None:
    pool = OddsPool()
    drafter, committed = drafter_of([1, 2, 3, 4, 5, 6, 1, 2], pool=pool)
    before = [pool.odds(cell) for cell in range(18)]
    drafter.look(committed.followed_by([3, 4]), 2)
    committed.extend([3, 9, 9, 9])
    drafter.look(committed, 2)
    assert [pool.odds(cell) for cell in range(18)] == before
    drafter.look(committed.followed_by([9]), 2)
    committed.extend([9, 9, 9])
    drafter.look(committed, 2)
    assert [pool.odds(cell) for cell in range(18)] != before


def test_sessions_lean_on_what_others_saw() -> None:
    pool = OddsPool()
    seen = MatchOdds(pool)
    [cell] = cells(1, [1.0])
    start = MatchOdds(pool).survival([cell])[0]
    for _ in range(200):
        seen.observe(cell, is_right=True)
    assert start + 0.3 < MatchOdds(pool).survival([cell])[0] < seen.survival([cell])[0]


def answers(memory: TextMemory, salt: str, limit: int = 100, tokens: int = 1000) -> None:
    for start in range(0, 40, 10):
        memory.add(salt, list(range(start, start + 9)), max_answers=limit, max_tokens=tokens)


def follows(memory: TextMemory, salt: str, token: int) -> list[int]:
    index = memory.recent(salt)
    found = [] if index is None else index.matches([token], 2, TERMS, is_own=False)
    return list(found[0].tokens) if found else []


def test_answers_are_kept_by_salt_and_never_shared() -> None:
    memory = TextMemory()
    answers(memory, "a")
    assert follows(memory, "a", 3) == [4, 5]
    assert follows(memory, "a", 33) == [34, 35]
    assert follows(memory, "", 3) == []
    assert follows(memory, "b", 3) == []


@pytest.mark.parametrize(("limit", "tokens"), [(2, 1000), (100, 25)])
def test_the_oldest_answers_go_first(limit: int, tokens: int) -> None:
    memory = TextMemory()
    answers(memory, "a", limit, tokens)
    assert memory.num_answers == 2
    assert memory.num_tokens <= tokens
    assert follows(memory, "a", 3) == []
    assert follows(memory, "a", 33) == [34, 35]


def test_the_salt_that_was_used_longest_ago_goes_first() -> None:
    memory = TextMemory()
    for salt in ("a", "b", "c"):
        memory.add(salt, [1, 2, 3], max_answers=3, max_tokens=99)
    memory.recent("a")
    memory.add("d", [1, 2, 3], max_answers=3, max_tokens=99)
    assert [bool(follows(memory, salt, 1)) for salt in "abcd"] == [True, False, True, True]


@pytest.mark.parametrize(("limit", "tokens"), [(0, 99), (9, 0), (9, 1)])
def test_limits_of_nothing_keep_nothing(limit: int, tokens: int) -> None:
    memory = TextMemory()
    memory.add("a", [1, 2, 3], max_answers=limit, max_tokens=tokens)
    assert (memory.num_answers, memory.num_tokens) == (0, 0)


def test_of_a_long_answer_the_end_is_kept() -> None:
    memory = TextMemory()
    memory.add("a", list(range(100)), max_answers=9, max_tokens=11)
    assert memory.num_tokens == 11
    assert follows(memory, "a", 95) == [96, 97]
    assert follows(memory, "a", 50) == []


@pytest.mark.parametrize("num_same", [0, 2, 3, 5, 6, 9])
def test_no_look_finds_more_than_the_best_case(num_same: int) -> None:
    """The odds of the start rise with the length, and places may differ."""
    end = list(range(20, 20 + num_same))
    drafter, committed = drafter_of([*end, 1, 2, 3, 4, 5, 6, 99, *end])
    best, found = drafter.best_case(committed, 4), drafter.look(committed, 4).survival
    assert bool(best) == (num_same >= 3)
    if best:
        assert len(best) == len(found) == 4
        assert all(most >= alive for most, alive in zip(best, found, strict=True))


def test_the_best_case_of_a_short_match_is_learnt_from_what_matches_brought() -> None:
    pool = OddsPool()
    taught = MatchOdds(pool)
    for _ in range(200):
        for cell in cells(3, [1.0] * 4):
            taught.observe(cell, is_right=False)
    ids = [7, 8, 9, 1, 2, 7, 8, 9]  # three tokens recur
    fresh, committed = drafter_of(ids)
    wary, _ = drafter_of(ids, pool=pool)
    assert sum(wary.best_case(committed, 4)) < 0.5 < sum(fresh.best_case(committed, 4))
