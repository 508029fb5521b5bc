"""Rows of tokens to train on.

Invariant: a step's batch is a function of (seed, step) alone, so a resumed run sees what an
unbroken one would. A row starts with the start of a text; texts follow one another.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.distill.answers import Answer

Sample = tuple[list[int], list[float]]  # token ids, loss weights


@dataclass(frozen=True)
class Batch:
    """One step's rows."""

    input_ids: Tensor  # [rows, length] int64
    weights: Tensor  # [rows, length] float32, loss weight of predicting that very token


@dataclass(frozen=True, kw_only=True)
class Rows:
    """How many rows a step has, and how long they are, in tokens."""

    count: int
    length: int


def sample_of(answer: Answer) -> Sample:
    """Only the answer is learnt: what a user writes is never drafted."""
    prompt, reply = answer
    return prompt + reply, [0.0] * len(prompt) + [1.0] * len(reply)


def pack(rng: random.Random, samples: Sequence[Sample], length: int) -> Sample:
    """One row of texts that `rng` chooses, the last one cut."""
    ids: list[int] = []
    weights: list[float] = []
    while len(ids) < length:
        more_ids, more_weights = rng.choice(samples)
        ids.extend(more_ids)
        weights.extend(more_weights)
    return ids[:length], weights[:length]


def batch_of_step(samples: Sequence[Sample], rows: Rows, seed: int, step: int) -> Batch:
    """The rows of one step."""
    rng = random.Random(f"rows:{seed}:{step}")
    packed = [pack(rng, samples, rows.length) for _ in range(rows.count)]
    return Batch(
        torch.tensor([ids for ids, _ in packed]), torch.tensor([weights for _, weights in packed])
    )
