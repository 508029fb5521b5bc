"""Finds the place at which two texts part: the character, its surroundings, and the token.

This module knows texts and tokens, no servers. A token is a text and its log probability. If a text
has tokens on both sides, the token of the difference is the first that differs. Else it is the one
that holds the character.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

_AROUND = 40  # characters that are shown before and after


@dataclass(frozen=True, slots=True)
class Token:
    """One token of an answer, and the likeliest in its place with their log probabilities."""

    text: str
    logprob: float
    likeliest: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Difference:
    """The place at which the texts of A and B part.

    Attributes:
        at: the first character that differs; where one text begins the other, its length.
        before: what both have before it.
        a, b: what each has from there on; all that is left of it is not always shown.
        ends: the finish reasons, where only they differ.
    """

    at: int
    before: str
    a: str
    b: str
    ends: tuple[str, str] | None = None


@dataclass(frozen=True, kw_only=True)
class Place:
    """The token at which two texts part.

    Attributes:
        index: of the token in the answer, from 0.
        source: what said so: logprobs or /tokenize.
        tokens: of A and B in that place, where known.
        margin: log probability of A's token less that of B's, by A; None: not told. Near 0 the
            two were nearly as likely, and rounding decided; far from 0 something else did.
    """

    index: int
    source: str
    tokens: tuple[str, str] | None = None
    margin: float | None = None


def first_difference(a: tuple[str, str], b: tuple[str, str]) -> Difference | None:
    """Return where two answers part, each a text with its finish reason; None: nowhere."""
    if a == b:
        return None
    (text_a, end_a), (text_b, end_b) = a, b
    at = num_common(text_a, text_b)
    return Difference(
        at=at,
        before=text_a[max(0, at - _AROUND) : at],
        a=text_a[at : at + _AROUND],
        b=text_b[at : at + _AROUND],
        ends=(end_a, end_b) if text_a == text_b else None,
    )


def num_common(a: Sequence[object], b: Sequence[object]) -> int:
    """Return how many items, from the first on, two sequences have in common."""
    pairs = enumerate(zip(a, b, strict=False))
    return next((index for index, (x, y) in pairs if x != y), min(len(a), len(b)))


def place_of(at: int, a: Sequence[Token], b: Sequence[Token]) -> Place | None:
    """Return the token at which answers part at the character `at`; either may lack tokens."""
    if not a and not b:
        return None
    if not a or not b:
        return Place(index=_index_at(at, a or b), source="logprobs")
    index = num_common([one.text for one in a], [one.text for one in b])
    if index >= len(a) or index >= len(b):  # one text begins the other
        return Place(index=index, source="logprobs")
    ours, theirs = a[index], b[index]
    other = ours.likeliest.get(theirs.text)
    return Place(
        index=index,
        source="logprobs",
        tokens=(ours.text, theirs.text),
        margin=None if other is None else ours.logprob - other,
    )


def tokens_of(blocks: Sequence[Mapping[str, Any]]) -> list[Token]:
    """Return the tokens of an answer from the logprobs of either route."""
    tokens: list[Token] = []
    for block in blocks:
        for one in block.get("content") or ():
            likeliest = {top["token"]: top["logprob"] for top in one.get("top_logprobs") or ()}
            tokens.append(Token(one["token"], one["logprob"], likeliest))
        texts = block.get("tokens") or ()
        likeliest_of = block.get("top_logprobs") or [{}] * len(texts)
        for text, logprob, top in zip(
            texts, block.get("token_logprobs") or (), likeliest_of, strict=False
        ):
            tokens.append(Token(text, logprob, top or {}))
    return tokens


def _index_at(at: int, tokens: Sequence[Token]) -> int:
    num_characters = 0
    for index, token in enumerate(tokens):
        num_characters += len(token.text)
        if num_characters > at:
            return index
    return len(tokens)
