"""Bounds the work of a reward by its parameters, to decide which processes may compute it.

A reward of an installed package is code: it may do anything to what shares its process. One of this
package is data, and its code is ours. A pattern may take any time, and a classifier takes long. The
others look at each character a fixed number of times, which bounds their work.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Any

from models.rewards.words import MAX_STEMMED

_STEMMING = frozenset({"concepts"})
_LOOKING = frozenset({"words", "length", "readability"})
_DATA = frozenset({"pattern", "classifier"})
_MAX_ASKED_CHARS = 4096  # characters of a reward's parameters that are looked into
# Looks per stem: stemming a character takes 30 us in the dearest language, other looks 0.6 at most.
_LOOKS_A_STEM = 16
_LOOKS_A_SCORE = 16  # looks that a part takes for no text at all


class Reach(Enum):
    """BOUNDED: its time is bounded by its text. DATA: ours, and may take any time. CODE: theirs."""

    BOUNDED = "bounded"
    DATA = "data"
    CODE = "code"


@dataclass(frozen=True, slots=True)
class Span:
    """The parts of a reward. `num_stemming` and `num_looking` count its bounded parts."""

    reach: Reach
    num_stemming: int = 0
    num_looking: int = 0

    def work(self, text: str, lookaheads: list[str]) -> float:
        """Return an upper bound of the scoring work, in characters that are stemmed.

        A text's words are stemmed once for all of its look-aheads (`words.py` remembers them). The
        last word is an exception, because each look-ahead may change it.
        """
        num_ahead = sum(map(len, lookaheads)) + len(lookaheads) * _open_len(text)
        num_looks = len(lookaheads) * (len(text) + _LOOKS_A_SCORE) + num_ahead
        num_parts = self.num_stemming + self.num_looking
        return self.num_stemming * (len(text) + num_ahead) + num_parts * num_looks / _LOOKS_A_STEM


def _open_len(text: str) -> int:
    """Characters of the last word, if what follows may go on with it and it still has a stem."""
    letters = takewhile(_is_of_a_word, reversed(text[-MAX_STEMMED:]))
    return sum(1 for _ in letters)


def _is_of_a_word(char: str) -> bool:
    return char.isalnum() or char in "_'\u2019"


def span_of(asked: str) -> Span:
    """Return the span of the reward whose JSON text a request has; CODE if it is not clear."""
    try:
        kinds = list(_kinds(json.loads(asked))) if len(asked) <= _MAX_ASKED_CHARS else [""]
    except (ValueError, RecursionError, AttributeError, TypeError, KeyError):
        kinds = [""]
    if not kinds or not all(kind in _STEMMING | _LOOKING | _DATA for kind in kinds):
        return Span(Reach.CODE)
    if any(kind in _DATA for kind in kinds):
        return Span(Reach.DATA)
    num_stemming = sum(kind in _STEMMING for kind in kinds)
    return Span(Reach.BOUNDED, num_stemming, len(kinds) - num_stemming)


def _kinds(asked: Any) -> Iterator[str]:
    """Yield the kinds of a reward's parts that are not sums themselves."""
    if asked["kind"] != "weighted":
        yield asked["kind"] if isinstance(asked["kind"], str) else ""
        return
    for part in asked["parts"]:
        yield from _kinds(part["reward"])
