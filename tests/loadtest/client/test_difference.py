"""Where two texts part, by character and by token."""

from __future__ import annotations

import pytest

from loadtest.client.difference import Token, first_difference, place_of, tokens_of


def tokens(*texts: str) -> list[Token]:
    return [Token(text, -0.1, {" rivers": -0.3}) for text in texts]


@pytest.mark.parametrize(
    ("a", "b", "at"),
    [
        *(("abc", "abd", 2), ("abc", "ab", 2), ("", "a", 0), ("grün", "grum", 2)),
        ("x" * 100 + "a" * 100, "x" * 100 + "b" * 100, 100),
    ],
)
def test_the_first_character_that_differs_is_told_with_forty_around(
    a: str, b: str, at: int
) -> None:
    found = first_difference((a, "stop"), (b, "stop"))
    assert found is not None
    assert (found.at, found.before) == (at, a[:at][-40:])
    assert (found.a, found.b) == (a[at:][:40], b[at:][:40])


def test_texts_with_the_same_end_are_the_same() -> None:
    assert first_difference(("abc", "stop"), ("abc", "stop")) is None
    ended = first_difference(("abc", "stop"), ("abc", "length"))
    assert ended is not None
    assert ended.ends == ("stop", "length")


def test_the_token_that_differs_may_begin_before_the_character() -> None:
    a, b = tokens("the", " river"), tokens("the", " rivers")
    place = place_of(len("the river"), a, b)
    assert place is not None
    assert (place.index, place.tokens) == (1, (" river", " rivers"))
    assert place.margin == pytest.approx(0.2)


@pytest.mark.parametrize("is_a", [True, False])
def test_tokens_of_one_side_tell_where_the_character_is(is_a: bool) -> None:
    known = tokens("the", " river", ".")
    for at, index in [(0, 0), (3, 1), (8, 1), (9, 2), (10, 3)]:
        place = place_of(at, known, []) if is_a else place_of(at, [], known)
        assert place is not None
        assert place.index == index


def test_a_text_that_the_other_begins_ends_at_its_last_token() -> None:
    place = place_of(3, tokens("the"), tokens("the", " river"))
    assert place is not None
    assert (place.index, place.tokens) == (1, None)
    assert place_of(3, [], []) is None


def test_tokens_are_read_from_either_route_in_any_blocks() -> None:
    likeliest = [{"token": " a", "logprob": -0.1}, {"token": " b", "logprob": -2.0}]
    chat = [{"content": [{"token": " a", "logprob": -0.1, "top_logprobs": likeliest}]}] * 2
    text = {"tokens": [" a"] * 2, "token_logprobs": [-0.1] * 2}
    known = [Token(" a", -0.1, {" a": -0.1, " b": -2.0})] * 2
    assert tokens_of(chat) == known
    assert tokens_of([{**text, "top_logprobs": [{" a": -0.1, " b": -2.0}] * 2}]) == known
    assert tokens_of([text]) == [Token(" a", -0.1)] * 2
