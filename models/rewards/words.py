"""Rewards of words: concepts that a text must use, words that it must or must not have.

Concepts are covered as CommonGen counts them (1911.03705): by their stem, whatever the ending. The
stemmers are Snowball's.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cached_property, lru_cache
from typing import Annotated, Any, Self

import snowballstemmer
from pydantic import Field, model_validator

from models.rewards.reward import RewardFields, Scored

_WORD = re.compile(r"\w+(?:['\u2019]\w+)*")  # a word may have an apostrophe within
_MAY_GO_ON = re.compile(r"\w['\u2019]?\Z")
_Word = Annotated[str, Field(min_length=1, max_length=64)]
_Words = Annotated[list[_Word], Field(max_length=64)]
_NUM_STEMS = 1 << 12  # remembered: words of a text come again with each of its look-aheads
MAX_STEMMED = 64  # characters of a word that has a stem, as of a concept: a longer one covers none


def words_of(text: str) -> list[str]:
    """Return the words of a text, in lower case."""
    return [word.lower() for word in _WORD.findall(text)]


def whole_words_of(text: str, is_end: bool) -> list[str]:
    """Return the words of a text without a last one that may go on."""
    words = words_of(text)
    is_cut = not is_end and _MAY_GO_ON.search(text[-2:])
    return words[:-1] if is_cut else words


@lru_cache(maxsize=8)
def _stemmer(language: str) -> Any:
    return snowballstemmer.stemmer(language)


@lru_cache(maxsize=_NUM_STEMS)
def _stem(language: str, word: str) -> str:
    stem: str = _stemmer(language).stemWord(word)
    return stem


class Concepts(RewardFields):
    """Share of the concepts whose stem is the stem of a word of the text."""

    concepts: Annotated[list[_Word], Field(min_length=1, max_length=64)]
    language: str = "english"

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.language not in snowballstemmer.algorithms():
            raise ValueError(
                f"language: must be one of {', '.join(sorted(snowballstemmer.algorithms()))}, "
                f"got {self.language!r}"
            )
        for concept in self.concepts:
            if len(words_of(concept)) != 1:
                raise ValueError(f"concepts: each must be one word, got {concept!r}")
        return self

    @cached_property
    def _stems(self) -> frozenset[str]:
        return frozenset(self._stemmed(self.concepts))

    def _stemmed(self, words: Iterable[str]) -> set[str]:
        return {_stem(self.language, word.lower()) for word in words if len(word) <= MAX_STEMMED}

    def score(self, text: str, lookahead: str, is_end: bool) -> Scored:
        """See `Reward.score`."""
        covered = self._stems.intersection(self._stemmed(set(words_of(text + lookahead))))
        is_met = len(covered) == len(self._stems)
        return Scored(len(covered) / len(self._stems), is_met, is_met or not is_end)


class Words(RewardFields):
    """Words as they are written, in any case: share of the required ones; 0 with a forbidden one.

    A last word that may go on is none yet.
    """

    required: _Words = Field(default_factory=list)
    forbidden: _Words = Field(default_factory=list)

    @model_validator(mode="after")
    def _check(self) -> Self:
        required, forbidden = self._required, self._forbidden
        if not required and not forbidden:
            raise ValueError("required: must have a word, or forbidden must")
        if both := sorted(required & forbidden):
            raise ValueError(f"required: {both[0]!r} is forbidden as well")
        for word in [*self.required, *self.forbidden]:
            if words_of(word) != [word.lower()]:
                raise ValueError(f"required and forbidden: each must be one word, got {word!r}")
        return self

    @cached_property
    def _required(self) -> frozenset[str]:
        return frozenset(word.lower() for word in self.required)

    @cached_property
    def _forbidden(self) -> frozenset[str]:
        return frozenset(word.lower() for word in self.forbidden)

    def score(self, text: str, lookahead: str, is_end: bool) -> Scored:
        """See `Reward.score`."""
        words = set(whole_words_of(text + lookahead, is_end))
        if words & self._forbidden:
            return Scored(0.0, is_met=False, can_be_met=False)
        num_wanted = max(len(self._required), 1)
        share = 1.0 - len(self._required - words) / num_wanted
        is_met = self._required <= words
        return Scored(share, is_met, is_met or not is_end)
