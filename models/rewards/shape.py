"""Rewards of a text's shape: how long it is, what pattern it has, how hard it is to read."""

from __future__ import annotations

import re
from functools import cached_property
from typing import Annotated, Any, Literal, Self

import regex
from pydantic import Field, model_validator

from models.rewards.reward import RewardFields, Scored
from models.rewards.words import words_of

_MAX_LENGTH = 1_000_000
_HALF_WAY = 0.5  # a pattern that is not there yet and may come
# Looked for at the first stop of a row alone: at each, a row of n would take n * n looks.
_SENTENCE_END = re.compile(r"(?<![.!?\u2026])[.!?\u2026]++(?=\s|$)")
# Automated Readability Index (Smith and Senter 1967): the grade of a US school.
_PER_LETTER, _PER_WORD, _BASE = 4.71, 0.5, -21.43
_GRADES = 5.0  # so many grades above the wanted one score 0


class Length(RewardFields):
    """Checks that the text has `min` to `max` words, characters or sentences."""

    unit: Literal["words", "characters", "sentences"] = "words"
    min: Annotated[int, Field(ge=0, le=_MAX_LENGTH)] = 0
    max: Annotated[int, Field(ge=1, le=_MAX_LENGTH)] = _MAX_LENGTH

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.min > self.max:
            raise ValueError(f"min: must be at most max, {self.max}, got {self.min}")
        return self

    def score(self, text: str, lookahead: str, is_end: bool) -> Scored:
        """See `Reward.score`."""
        length = self._length(text + lookahead, is_end)
        if length > self.max:
            return Scored(0.0, is_met=False, can_be_met=False)
        is_met = length >= self.min
        score = 1.0 if is_met else length / self.min
        return Scored(score, is_met, is_met or not is_end)

    def _length(self, text: str, is_end: bool) -> int:
        if self.unit == "characters":
            return len(text)
        return len(words_of(text)) if self.unit == "words" else _num_sentences(text, is_end)


class Pattern(RewardFields):
    """Checks that a regular expression is found in the text, or matches the whole of it.

    The score is 1 if it does, 0 if it no longer can, one half between. Later text can undo a match
    of the whole, and of an end (`$`).
    """

    pattern: Annotated[str, Field(min_length=1, max_length=4096)]
    match: Literal["search", "whole"] = "search"

    @model_validator(mode="after")
    def _check(self) -> Self:
        try:
            _ = self._compiled
        except regex.error as error:
            raise ValueError(f"pattern: {error}") from None
        return self

    @cached_property
    def _compiled(self) -> Any:
        return regex.compile(self.pattern)

    def score(self, text: str, lookahead: str, is_end: bool) -> Scored:
        """See `Reward.score`."""
        whole = text + lookahead
        find = self._compiled.search if self.match == "search" else self._compiled.fullmatch
        if find(whole) is not None:
            return Scored(1.0, is_met=True)
        # A partial match reaches the end of the text, where what follows may complete it.
        can_be_met = not is_end and find(whole, partial=True) is not None
        return Scored(_HALF_WAY if can_be_met else 0.0, is_met=False, can_be_met=can_be_met)


class Readability(RewardFields):
    """Checks that the text reads at `max_grade` or below, by the Automated Readability Index."""

    max_grade: Annotated[float, Field(ge=1.0, le=20.0)] = 8.0

    def score(self, text: str, lookahead: str, is_end: bool) -> Scored:
        """See `Reward.score`."""
        whole = text + lookahead
        words = words_of(whole)
        if not words:
            return Scored(0.0, is_met=False, can_be_met=not is_end)
        letters = sum(map(len, words)) / len(words)
        per_sentence = len(words) / max(_num_sentences(whole, is_end=True), 1)
        above = _PER_LETTER * letters + _PER_WORD * per_sentence + _BASE - self.max_grade
        is_met = above <= 0.0
        score = 1.0 if is_met else max(0.0, 1.0 - above / _GRADES)
        return Scored(score, is_met, is_met or not is_end)


def _num_sentences(text: str, is_end: bool) -> int:
    """Sentences that have ended; with `is_end` a last one without a stop has ended too."""
    ends = list(_SENTENCE_END.finditer(text))
    rest = text[ends[-1].end() :] if ends else text
    return len(ends) + (is_end and bool(words_of(rest)))
