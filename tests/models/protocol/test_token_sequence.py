import random

import pytest

from models.protocol.token_sequence import EMPTY_HASH, TokenSequence, extend_hash


def test_a_prefix_is_held_by_its_length_and_its_hash() -> None:
    tokens = TokenSequence([5, 6, 7])
    others = TokenSequence([5, 6, 8])
    assert tokens.holds(0, EMPTY_HASH)
    assert tokens.holds(2, others.hash_at(2))
    assert tokens.holds(3, extend_hash(others.hash_at(2), 7))
    assert not tokens.holds(3, others.hash_at(3))
    assert not tokens.holds(1, others.hash_at(2))


@pytest.mark.parametrize("length", [-1, -3, 4])
def test_a_length_that_is_not_there_is_not_held(length: int) -> None:
    tokens = TokenSequence([5, 6, 7])
    assert not tokens.holds(length, tokens.hash_at(min(length, 3)))


@pytest.mark.parametrize(
    ("start", "tokens", "expected"),
    [
        (0, [5, 6, 7], 3),
        (0, [5, 6, 7, 8], 3),
        (0, [5, 9, 7], 1),
        (1, [6, 7], 2),
        (1, [5, 6], 0),
        (3, [5], 0),
        (9, [5], 0),
        (1, [], 0),
    ],
)
def test_common_tokens_are_counted_from_the_first(
    start: int, tokens: list[int], expected: int
) -> None:
    assert TokenSequence([5, 6, 7]).num_common(start, tokens) == expected


def test_hashes_follow_the_ids_through_any_changes() -> None:
    rng = random.Random(7)
    tokens = TokenSequence()
    for _ in range(200):
        tokens.truncate(rng.randint(0, len(tokens)))
        tokens.extend(rng.randrange(9) for _ in range(rng.randint(0, 5)))
        again = TokenSequence(tokens.ids)
        assert all(tokens.holds(n, again.hash_at(n)) for n in range(len(tokens) + 1))
