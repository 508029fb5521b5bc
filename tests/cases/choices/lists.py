"""Lists of choices, and the law over one by a second implementation."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np

from models.protocol.messages import Choose
from tests.cases.messages import header

# Choices that begin others, that share a beginning, and one that is long.
CHOICES: list[list[int]] = [
    [3],
    [3, 4],
    [3, 4, 5, 6],
    [3, 9],
    [7, 8, 9],
    [11],
    [int(i) for i in np.random.default_rng(2).integers(0, 200, 23)],
]

Logprobs = Callable[[list[int]], Sequence[float]]  # of the next token after some ids


def choosing(
    session_id: str,
    seq: int,
    ids: Sequence[int],
    choices: Sequence[Sequence[int]],
    *,
    base_len: int = 0,
) -> Choose:
    return Choose(**header(session_id, seq, ids, base_len), choices=[list(c) for c in choices])


def enumerated(
    prompt: Sequence[int], choices: Sequence[Sequence[int]], end_ids: Sequence[int], of: Logprobs
) -> list[float]:
    """The log-probability of each choice and an end behind it, a choice at a time."""
    found = []
    for choice in choices:
        total = 0.0
        for index, token in enumerate(choice):
            total += of([*prompt, *choice[:index]])[token]
        ends = of([*prompt, *choice])
        found.append(total + math.log(sum(math.exp(ends[end]) for end in end_ids)))
    return found


def normalised(logprobs: Sequence[float], temperature: float = 1.0) -> list[float]:
    """The probabilities of choices among each other."""
    weights = [math.exp((one - max(logprobs)) / temperature) for one in logprobs]
    return [weight / sum(weights) for weight in weights]
