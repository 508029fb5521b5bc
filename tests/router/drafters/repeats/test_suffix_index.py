"""The suffix structure against a search of all texts, whatever was added and dropped before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from router.drafters.repeats.suffix_index import Match, MatchTerms, SuffixIndex

KEYS, MOST_PLACES = (6, 3, 1), 16
TEXTS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=30), max_size=5)


def by_search(
    texts: Sequence[Sequence[int]],
    ids: Sequence[int],
    most: int,
    terms: MatchTerms,
    *,
    is_own: bool,
    num_read: int = 1000,
) -> list[Match]:
    """The rule in plain words, over every place of every text."""
    places = [(text, end) for text in texts for end in range(len(text) + 1)]
    if is_own:  # nothing follows the end
        places = [(text, end) for text, end in places if end <= num_read and end < len(ids)]
    for key in KEYS:
        latest = [
            (text, end)
            for text, end in places
            if key <= min(end, len(ids)) and list(text[end - key : end]) == list(ids[-key:])
        ][-MOST_PLACES:][::-1]
        if latest:
            break
    lengths = [match_length(text[:end], ids, terms.max_tree_depth) for text, end in latest]
    found = []
    for length in sorted(set(lengths), reverse=True):
        agreed = [place for place, n in zip(latest, lengths, strict=True) if n >= length]
        most_here = min(most, int(length * terms.max_spec_factor + terms.max_spec_offset))
        found.append(continued(agreed, length, most_here, terms.min_token_prob, is_own))
    return found


def match_length(before: Sequence[int], ids: Sequence[int], most: int) -> int:
    length = 0
    while length < min(most, len(before), len(ids)) and before[-1 - length] == ids[-1 - length]:
        length += 1
    return length


def continued(
    places: Sequence[tuple[Sequence[int], int]],
    length: int,
    most: int,
    min_prob: float,
    is_own: bool,
) -> Match:
    tokens: list[int] = []
    shares: list[float] = []
    prob = 1.0
    while len(tokens) < most:
        # What follows a place is the rest of its text; of the own one the draft itself goes on.
        follows = [([*text[end:], *tokens] if is_own else list(text[end:])) for text, end in places]
        said = [after[len(tokens)] if len(after) > len(tokens) else None for after in follows]
        counts = Counter(token for token in said if token is not None)
        if not counts:
            break
        chosen = next(t for t in said if t is not None and counts[t] == max(counts.values()))
        prob *= counts[chosen] / len(places)
        if prob < min_prob:
            break
        tokens.append(chosen)
        shares.append(counts[chosen] / len(places))
        places = [place for place, token in zip(places, said, strict=True) if token == chosen]
    return Match(length, tokens, shares)


def index_of(texts: Sequence[Sequence[int]], num_dropped: int = 0) -> SuffixIndex:
    """Read texts that are over, and lose so many of the first ones on the way."""
    index = SuffixIndex()
    for number, text in enumerate(texts):
        index.extend(text)
        index.end_text()
        if number < num_dropped and index.num_texts > 1:
            index.drop_oldest()
    return index


@settings(deadline=None)  # the machine may be busy
@given(
    texts=TEXTS,
    ids=st.lists(st.integers(0, 2), min_size=1, max_size=20),
    num_dropped=st.integers(0, 4),
    most=st.integers(1, 12),
    factor=st.sampled_from([0.5, 1.0, 4.0]),
    offset=st.sampled_from([0.0, 2.0]),
    min_prob=st.sampled_from([0.0, 0.1, 0.6]),
)
def test_matches_in_texts_that_are_over_are_those_of_a_search(
    texts: list[list[int]],
    ids: list[int],
    num_dropped: int,
    most: int,
    factor: float,
    offset: float,
    min_prob: float,
) -> None:
    terms = MatchTerms(
        max_tree_depth=8, max_spec_factor=factor, max_spec_offset=offset, min_token_prob=min_prob
    )
    index = index_of(texts, num_dropped)
    held = texts[len(texts) - index.num_texts :]
    assert len(index) == sum(len(text) + 1 for text in held)
    found = index.matches(ids, most, terms, is_own=False)
    assert found == by_search(held, ids, most, terms, is_own=False)


@settings(deadline=None)
@given(
    ids=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    steps=st.lists(st.integers(1, 9), max_size=12),
    tail=st.lists(st.integers(0, 3), max_size=4),
    most=st.integers(1, 9),
)
def test_matches_in_a_text_that_grows_are_those_of_a_search(
    ids: list[int], steps: list[int], tail: list[int], most: int
) -> None:
    """Whatever the steps in which it was read, and behind tokens that it does not have yet."""
    terms = MatchTerms(max_spec_factor=4.0)
    index, num_read = SuffixIndex(), 0
    for step in [*steps, len(ids)]:
        index.extend(ids[num_read : num_read + step])
        num_read = min(len(ids), num_read + step)
        text = ids[:num_read]
        assert index.matches(text, most, terms, is_own=True) == by_search(
            [text], text, most, terms, is_own=True
        )
    text = [*ids, *tail]
    assert index.matches(text, most, terms, is_own=True) == by_search(
        [text], text, most, terms, is_own=True, num_read=len(ids)
    )


@pytest.mark.parametrize(
    ("ids", "expected"),
    [
        ([1, 2, 3, 9, 1, 2], [3, 9, 1, 2]),
        ([7, 7], [7, 7, 7, 7]),
        ([1, 2, 1, 2, 1], [2, 1, 2, 1]),
        ([1, 2, 3], None),
        ([4], None),
        ([1, 5, 2, 1, 6, 2, 1, 5, 3, 1], [5]),
    ],
    ids=["follows", "period-1", "period-2", "no-match", "one-token", "disagree"],
)
def test_what_follows(ids: list[int], expected: list[int] | None) -> None:
    index = SuffixIndex()
    index.extend(ids)
    terms = MatchTerms(max_spec_factor=4.0, min_token_prob=0.4)
    found = index.matches(ids, 4, terms, is_own=True)
    assert [list(match.tokens) for match in found[:1]] == ([] if expected is None else [expected])


@settings(deadline=None)
@given(
    texts=TEXTS,
    ids=st.lists(st.integers(0, 2), min_size=1, max_size=20),
    num_dropped=st.integers(0, 4),
)
def test_the_bound_of_a_match_is_that_of_the_keys_that_recur(
    texts: list[list[int]], ids: list[int], num_dropped: int
) -> None:
    index, own = index_of(texts, num_dropped), SuffixIndex()
    own.extend(ids)
    for each, is_own in ((index, False), (own, True)):
        found = each.matches(ids, 1, MatchTerms(), is_own=is_own)
        longest = max((match.length for match in found), default=0)
        bound = 0 if longest < 3 else 5 if longest < 6 else len(ids)
        assert each.match_bound(ids, is_own=is_own) == bound


def test_what_is_dropped_leaves_nothing_behind() -> None:
    index = index_of([[1, 2, 3, 4, 5, 6, 7], [8, 9, 1, 2], [5, 5, 5]])
    while index.num_texts:
        index.drop_oldest()
    assert len(index) == 0
    assert all(not chains.latest and not chains.earlier for chains in index._chains)
