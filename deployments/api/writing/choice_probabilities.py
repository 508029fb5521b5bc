"""Computes the probability of each choice of a list, for answers that ask for it.

Each choice of an answer has them; a stream has them in its event with the text. `logprob` is the
model's for the choice's tokens and an end after them. `probability` is its share among the choices
of the list, from which a request at temperature 1 without truncation samples.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

from router.types import Delta


class ChoiceProbability(msgspec.Struct, frozen=True):
    """One choice of the list."""

    choice: str
    logprob: float
    probability: float


def probabilities_of(choices: Sequence[str], delta: Delta) -> list[ChoiceProbability]:
    """Return the probabilities of a list.

    They are empty if they were not requested (no `choices`) or came before.
    """
    if not choices or not delta.choice_logprobs:
        return []
    highest = max(delta.choice_logprobs)
    weights = [math.exp(logprob - highest) for logprob in delta.choice_logprobs]
    total = math.fsum(weights)
    return [
        ChoiceProbability(choice=choice, logprob=logprob, probability=weight / total)
        for choice, logprob, weight in zip(choices, delta.choice_logprobs, weights, strict=True)
    ]
