"""The kernel that draws tokens on a CPU, beside the same in torch's own operations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from models.cpu.draw import draw_noisy
from models.protocol.messages import Sampling
from models.sampling import draws
from models.sampling.logits import shaped_scores
from models.sampling.noise import stream_keys
from models.sampling.verification import draw_ids

SIZES = [1, 15, 16, 17, 50, 4096, 49_152]  # no vector, a part of one, whole ones, a real model's


def drawn(logits: torch.Tensor, samplings: list[Sampling], positions: list[int]) -> list[int]:
    streams = stream_keys([one.seed for one in samplings], positions)
    temperatures = np.array([one.temperature for one in samplings], dtype=np.float32)
    return [int(token) for token in draw_noisy(logits, streams, temperatures)]


def by_torch(logits: torch.Tensor, samplings: list[Sampling], positions: list[int]) -> list[int]:
    ids = draw_ids(shaped_scores(logits, samplings), samplings, positions)
    return [int(token) for token in ids]


@pytest.mark.parametrize("vocab_size", SIZES)
def test_it_draws_what_torch_draws(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    temperatures = [0.0, 0.3, 0.7, 1.0, 1.9]
    samplings = [Sampling(temperature=temperatures[row % 5], seed=row**9) for row in range(200)]
    positions = [7 * row for row in range(200)]
    logits = 3 * torch.randn(200, vocab_size, generator=generator)
    logits[torch.rand(200, vocab_size, generator=generator) < 0.3] = -torch.inf  # masked
    expected = by_torch(logits, samplings, positions)
    assert drawn(logits, samplings, positions) == expected
    alone = [drawn(logits[row : row + 1], [samplings[row]], [positions[row]]) for row in (0, 3, 99)]
    assert alone == [[expected[row]] for row in (0, 3, 99)], "a row depends on its batch"


def test_the_lowest_of_equal_ones_is_drawn() -> None:
    logits = torch.zeros(3, 70)
    logits[0, [69, 31, 18]] = 5.0  # the last in a part of a vector, two in one lane's column
    logits[1] = -torch.inf
    logits[2, [64, 0]] = 1.0
    assert drawn(logits, [Sampling(temperature=0)] * 3, [0, 1, 2]) == [18, 0, 0]


def test_frequencies_are_those_of_the_scores() -> None:
    """By draws from a stream that torch has no part in: 4 standard deviations of 60,000."""
    scores = torch.tensor([0.0, 1.0, -1.0, 2.0, -torch.inf]).repeat(60_000, 1)
    tokens = drawn(scores, [Sampling(temperature=2.0, seed=5)] * 60_000, list(range(60_000)))
    found = torch.bincount(torch.tensor(tokens), minlength=5) / 60_000
    wanted = (scores[0] / 2).softmax(dim=0)
    spread = (wanted * (1 - wanted) / 60_000).sqrt()
    assert ((found - wanted).abs() <= 4 * spread).all()
    assert found[4] == 0.0


@pytest.mark.parametrize(
    "terms",
    [{}, {"top_k": 3}, {"top_p": 0.8}, {"min_p": 0.05}, {"temperature": 0.0}],
    ids=str,
)
def test_draws_of_this_process_are_the_kernels(
    monkeypatch: pytest.MonkeyPatch, terms: dict[str, float]
) -> None:
    monkeypatch.setattr(draws, "_draw_on_cpu", None)
    logits = 2 * torch.randn(120, 300, generator=torch.Generator().manual_seed(1))
    cut = Sampling(**{"temperature": 0.8, "seed": 3, **terms})  # type: ignore[arg-type]
    samplings = [cut, Sampling(temperature=1.1, seed=4), Sampling(temperature=0)] * 40
    terms_of_all = (logits, samplings, list(range(120)))
    expected = draws.draw_from_logits(*terms_of_all).tolist()
    asked = []

    def draw(*given: object) -> torch.Tensor:
        asked.append(given)
        return draw_noisy(*given)  # type: ignore[arg-type]

    draws.use_on_cpu(draw)
    assert draws.draw_from_logits(*terms_of_all).tolist() == expected
    assert len(asked) == 1
