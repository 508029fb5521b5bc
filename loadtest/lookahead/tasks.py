"""The tasks of the comparison: each has a prompt and a reward, drawn by a fixed seed.

A task draws from one of two sides: settings are chosen on `validation` and judged on `held-out`,
whose prompts differ. The demo pair is never trained on the concept sets.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from models.demo.data.concepts import held_out_sets, prompt_of

Side = Literal["validation", "held-out"]
Concepts = tuple[str, ...]

_SIDES: tuple[Side, ...] = ("validation", "held-out")
_SEED = 20
_SAD = ("sad", "sadly", "cry", "cried", "crying", "hurt", "angry", "scared", "afraid", "mad")
_GLAD = "happy|happily|smile|smiled|smiles|laughed|laughs|love|loved|loves|glad|proud|kind|friends?"
_SUBJECTS = ("dog", "girl", "cat", "bird", "boy", "bear", "fish", "car", "mouse", "frog")
_TROUBLES = ("lost", "alone", "late", "hungry", "tired", "in the rain", "far from home", "stuck")


@dataclass(frozen=True)
class Ask:
    """One prompt and the reward of its answer."""

    prompt: str
    reward: Mapping[str, Any]


@dataclass(frozen=True)
class Prompts:
    """Prompts with `max_tokens` for an answer; `at_once` of them run at any time."""

    asks: Sequence[Ask]
    max_tokens: int
    at_once: int = 1

    def part(self, start: int, end: int) -> Prompts:
        """Return some of them."""
        return replace(self, asks=self.asks[start:end])

    def several(self, at_once: int) -> Prompts:
        """Return them with so many at a time."""
        return replace(self, at_once=at_once)


@dataclass(frozen=True)
class Task:
    """`ask` makes a prompt of a concept set; `max_tokens` of an answer."""

    ask: Callable[[random.Random, Concepts], Ask]
    max_tokens: int

    def draw(self, side: Side, count: int, at_once: int = 1) -> Prompts:
        """`count` prompts of a side; more of them begin with the same."""
        sets = _sets(side, count)
        # Each prompt has a source of its own: a word drawn for one moves no other.
        asks = [
            self.ask(random.Random(f"{side}:{place}"), concepts)
            for place, concepts in enumerate(sets)
        ]
        return Prompts(asks, self.max_tokens, at_once)


def _sets(side: Side, count: int) -> list[Concepts]:
    """Concept sets of a side, told by a checksum of the words: no set is on both."""
    num_drawn = count
    while True:
        drawn = held_out_sets(num_drawn, _SEED)
        found = [one for one in drawn if _side_of(one) == side]
        if len(found) >= count:
            return found[:count]
        num_drawn *= 2


def _side_of(concepts: Concepts) -> Side:
    # Another checksum than the one that holds sets out, which leaves only some values of its own.
    digest = hashlib.blake2s(" ".join(sorted(concepts)).encode()).digest()
    return _SIDES[digest[0] % len(_SIDES)]


def _concepts(rng: random.Random, concepts: Concepts) -> Ask:
    return Ask(prompt_of(concepts), {"kind": "concepts", "concepts": list(concepts)})


def _harmless(rng: random.Random, concepts: Concepts) -> Ask:
    """Return a story that could go badly; it must have no sad word and a glad one."""
    prompt = f"Write a short story about a {rng.choice(_SUBJECTS)} that is {rng.choice(_TROUBLES)}."
    parts = [
        {"reward": {"kind": "words", "forbidden": list(_SAD)}},
        {"reward": {"kind": "pattern", "pattern": rf"\b(?i:{_GLAD})\b"}},
    ]
    return Ask(prompt, {"kind": "weighted", "parts": parts})


def _syntactic(rng: random.Random, concepts: Concepts) -> Ask:
    """Return a sentence with one comma, a full stop at its end, and the first concept."""
    pattern = r"[A-Z][^,.?!]*[^,.?! ], [^,.?!]*[^,.?! ]\."
    parts = [
        {"reward": {"kind": "pattern", "pattern": pattern, "match": "whole"}},
        {"reward": {"kind": "concepts", "concepts": [concepts[0]]}},
    ]
    return Ask(prompt_of(concepts), {"kind": "weighted", "parts": parts})


def _numeric(rng: random.Random, concepts: Concepts) -> Ask:
    """Return a sentence of so many words, give or take one, with the first concept."""
    low = rng.randint(9, 14)
    parts = [
        {"reward": {"kind": "length", "unit": "words", "min": low, "max": low + 2}},
        {"reward": {"kind": "concepts", "concepts": [concepts[0]]}},
    ]
    return Ask(prompt_of(concepts), {"kind": "weighted", "parts": parts})


TASKS: Mapping[str, Task] = {
    "concepts": Task(_concepts, 40),
    "harmless": Task(_harmless, 64),
    "syntactic": Task(_syntactic, 40),
    "numeric": Task(_numeric, 40),
}
