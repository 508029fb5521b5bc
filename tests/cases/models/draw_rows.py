"""Rows of logits with terms of all kinds, for draws that must come to the same token."""

from __future__ import annotations

import random

import torch
from torch import Tensor

from models.protocol.messages import Sampling

VOCAB_SIZE = 3000  # two chunks of a draw, the second in part


def random_rows(seed: int, num_rows: int) -> tuple[Tensor, list[Sampling], list[int]]:
    """Logits [num_rows, VOCAB_SIZE], terms and positions: with ties, zeros of either sign, -inf."""
    generator = torch.Generator().manual_seed(seed)
    chance = random.Random(seed)
    logits = 3 * torch.randn(num_rows, VOCAB_SIZE, generator=generator)
    for row in logits:
        kind = chance.randrange(8)
        if kind == 0:
            row.copy_(row.round() * 0.5)  # ties everywhere, and both zeros
        elif kind == 1:
            row[chance.randrange(VOCAB_SIZE) :] = -torch.inf
        elif kind == 2:
            row[chance.randrange(2) :: 2] = -torch.inf
        elif kind == 3:
            row.mul_(10)
        elif kind == 4:
            row.fill_(1.5)
    return (
        logits,
        [random_terms(chance) for _ in range(num_rows)],
        [chance.randrange(100_000) for _ in range(num_rows)],
    )


def random_terms(chance: random.Random) -> Sampling:
    """Terms of a row, each there or not."""
    return Sampling(
        temperature=chance.choice([0.0, 0.3, 0.7, 1.0, 1.3]),
        top_k=chance.choice([0, 0, 1, 2, 40, 2999, 5000]),
        top_p=chance.choice([1.0, 1.0, 0.999, 0.9, 0.5, 0.01]),
        min_p=chance.choice([0.0, 0.0, 0.02, 0.5, 1.0]),
        seed=chance.getrandbits(64),
    )
