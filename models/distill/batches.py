"""Rows of tokens to train on.

Invariant: a step's batch is a function of (seed, step) alone. So a resumed run sees the batches of
an unbroken one. Texts follow one another in a row.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor

from models.distill.answers import Answer

Sample = tuple[list[int], list[float]]  # token ids, loss weights


@dataclass(frozen=True)
class Batch:
    """One step's rows."""

    input_ids: Tensor  # [rows, length] int64
    weights: Tensor  # [rows, length] float32, loss weight of predicting that very token


def sample_of(answer: Answer) -> Sample:
    """Only the answer is learnt: what a user writes is never drafted."""
    prompt, reply = answer
    return prompt + reply, [0.0] * len(prompt) + [1.0] * len(reply)


def pack(rng: random.Random, samples: Sequence[Sample], length: int) -> Sample:
    """Return a row of texts that `rng` chooses, the last one cut."""
    ids: list[int] = []
    weights: list[float] = []
    while len(ids) < length:
        more_ids, more_weights = rng.choice(samples)
        ids.extend(more_ids)
        weights.extend(more_weights)
    return ids[:length], weights[:length]


def packed_rows(samples: Sequence[Sample], length: int, seed: int) -> list[Sample]:
    """Join all texts in a drawn order and cut them into rows.

    The rest is dropped.
    """
    order = list(samples)
    random.Random(f"order:{seed}").shuffle(order)
    ids = [token for text, _ in order for token in text]
    weights = [weight for _, each in order for weight in each]
    starts = range(0, len(ids) - length + 1, length)
    return [(ids[start : start + length], weights[start : start + length]) for start in starts]


def batch_of_step(rows: Sequence[Sample], count: int, seed: int, step: int) -> Batch:
    """`count` rows of a step: all rows once in a drawn order, then all in another one."""
    chosen = []
    for number in range(step * count, (step + 1) * count):
        epoch, place = divmod(number, len(rows))
        chosen.append(rows[_order(len(rows), seed, epoch)[place]])
    return Batch(
        torch.tensor([ids for ids, _ in chosen]), torch.tensor([weights for _, weights in chosen])
    )


@lru_cache(maxsize=2)
def _order(num_rows: int, seed: int, epoch: int) -> list[int]:
    return random.Random(f"epoch:{seed}:{epoch}").sample(range(num_rows), num_rows)
