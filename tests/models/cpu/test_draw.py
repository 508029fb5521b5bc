"""The kernel that draws tokens on a CPU, beside the same in torch's own operations."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from models.cpu.draw import draw_by_terms
from models.protocol.messages import Sampling
from models.sampling import draws
from models.sampling.draws import pack_draws
from models.sampling.logits import shaped_scores
from models.sampling.verification import draw_ids

INFINITE = float("inf")
SIZES = [1, 15, 16, 17, 50, 4096, 49_152]  # no vector, a part of one, whole ones, a real model's
TEMPERATURES = (0.3, 0.7, 1.0, 1.9)
TERMS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.0},
    {"top_k": 1},
    {"top_k": 3},
    {"top_k": 300},
    {"top_p": 0.5},
    {"top_p": 0.95},
    {"top_p": 0.999},
    {"min_p": 0.1},
    {"top_k": 20, "top_p": 0.8},
    {"top_k": 4000, "top_p": 0.9},
    {"min_p": 0.02, "top_p": 0.9},
    {"min_p": 0.3, "top_k": 5, "top_p": 0.7},
]
NUM_ROWS = 8 * len(TERMS)
SAMPLINGS = [
    Sampling(**{"temperature": TEMPERATURES[row % 4], "seed": row**9, **TERMS[row % len(TERMS)]})
    for row in range(NUM_ROWS)
]


def drawn(logits: Tensor, samplings: list[Sampling], positions: list[int]) -> list[int]:
    ids = draw_by_terms(logits, pack_draws(samplings, positions, logits.shape[1]))
    return [int(token) for token in ids]


def by_torch(logits: Tensor, samplings: list[Sampling], positions: list[int]) -> list[int]:
    ids = draw_ids(shaped_scores(logits, samplings), samplings, positions)
    return [int(token) for token in ids]


def masked(spread: float, vocab_size: int) -> Tensor:
    """Normal logits of which a third is forbidden; with a spread of 1 many are equal."""
    generator = torch.Generator().manual_seed(vocab_size)
    logits = spread * torch.randn(NUM_ROWS, vocab_size, generator=generator)
    if spread == 1:
        logits = (4 * logits).round() / 4
    return logits.masked_fill(
        torch.rand(NUM_ROWS, vocab_size, generator=generator) < 0.3, -torch.inf
    )


@pytest.mark.parametrize("spread", [0.01, 1.0, 4.0], ids=["flat", "with ties", "usual"])
@pytest.mark.parametrize("vocab_size", SIZES)
def test_it_draws_what_torch_draws(vocab_size: int, spread: float) -> None:
    logits, positions = masked(spread, vocab_size), [7 * row for row in range(NUM_ROWS)]
    expected = by_torch(logits, SAMPLINGS, positions)
    assert drawn(logits, SAMPLINGS, positions) == expected
    for row in (0, 5, 9, 99):
        own = slice(row, row + 1)
        alone = drawn(logits[own], SAMPLINGS[own], positions[own])
        assert alone == expected[own], "a row depends on its batch"


@pytest.mark.parametrize("num_threads", [2, 3])
def test_threads_change_nothing(num_threads: int) -> None:
    terms = masked(4.0, 4096), SAMPLINGS, list(range(NUM_ROWS))
    expected = drawn(*terms)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        assert [drawn(*terms) for _ in range(5)] == [expected] * 5
    finally:
        torch.set_num_threads(before)


EDGES: list[tuple[list[float], dict[str, float], list[int]]] = [
    ([1.0, 3.0, 3.0, 2.0], {"top_p": 0.0}, [1, 2]),
    ([1.0, 3.0, 2.0, 0.0], {"top_p": 1e-9}, [1]),
    ([1.0, -INFINITE, 2.0, -INFINITE], {"top_k": 3}, [0, 2]),
    ([-INFINITE, -INFINITE, 2.0, -INFINITE], {"top_p": 0.9}, [2]),
    ([-INFINITE, 1.0, 1.0, -INFINITE], {"top_k": 20, "top_p": 0.4}, [1, 2]),
    ([0.0, -0.0, -1.0, -2.0], {"top_k": 1}, [0, 1]),
    ([1.0, 2.0, 2.0, 1.9], {"min_p": 1.0}, [1, 2]),
    ([1.0, INFINITE, 2.0, INFINITE], {"top_k": 2}, [1]),  # noise parts them no more
    ([1.0, 30.0, 2.0, 1.0], {"top_p": 0.9, "temperature": 1e-38}, [1]),
    ([1.0, 30.0, 2.0, 1.0], {"min_p": 0.1, "temperature": 1e-38}, [1]),
]


@pytest.mark.parametrize(("logits", "terms", "stay"), EDGES, ids=str)
def test_what_stays_at_the_edges(
    logits: list[float], terms: dict[str, float], stay: list[int]
) -> None:
    samplings = [Sampling(**{"temperature": 1.0, **terms, "seed": n}) for n in range(60)]  # type: ignore[arg-type]
    rows = torch.tensor([logits]).repeat(60, 1)
    assert set(drawn(rows, samplings, list(range(60)))) == {*stay}
    wide = torch.tensor([[*logits, *[-INFINITE] * 50_000]])  # masked by a grammar
    assert drawn(wide, samplings[:1], [0])[0] in stay


def test_numbers_that_are_none_give_some_id() -> None:
    logits = torch.full((4, 40), torch.nan)
    logits[:2, 7] = 1.0
    cut = [Sampling(temperature=1.0, **terms) for terms in ({}, {"top_p": 0.5}) * 2]  # type: ignore[arg-type]
    assert all(0 <= token < 40 for token in drawn(logits, cut, [0, 1, 2, 3]))


def test_the_lowest_of_equal_ones_is_drawn() -> None:
    logits = torch.zeros(3, 70)
    logits[0, [69, 31, 18]] = 5.0  # the last in a part of a vector, two in one lane's column
    logits[1] = -torch.inf
    logits[2, [64, 0]] = 1.0
    assert drawn(logits, [Sampling(temperature=0)] * 3, [0, 1, 2]) == [18, 0, 0]
    cut = Sampling(temperature=1.0, top_p=0.5)
    assert drawn(logits[1:2], [cut], [0]) == [0], "nothing is allowed: the caller sees to that"


def test_frequencies_are_those_of_the_scores() -> None:
    """No torch is in it: 4 standard deviations of 60,000 draws."""
    logits = torch.tensor([0.0, 1.0, -1.0, 2.0, -torch.inf]).repeat(60_000, 1)
    for terms, stay in (({}, [0, 1, 2, 3]), ({"top_k": 2}, [1, 3]), ({"top_p": 0.6}, [1, 3])):
        sampling = Sampling(**{"temperature": 2.0, "seed": 5, **terms})  # type: ignore[arg-type]
        tokens = drawn(logits, [sampling] * 60_000, list(range(60_000)))
        found = np.bincount(tokens, minlength=5) / 60_000
        wanted = np.zeros(5)
        wanted[stay] = (logits[0, stay] / 2).softmax(dim=0).numpy()
        assert (np.abs(found - wanted) <= 4 * np.sqrt(wanted * (1 - wanted) / 60_000)).all()


def test_draws_of_this_process_are_the_kernels(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draws, "_draw_on_cpu", None)
    terms = masked(2.0, 300), SAMPLINGS, list(range(NUM_ROWS))
    expected = draws.draw_from_logits(*terms).tolist()
    asked = []

    def draw(logits: Tensor, packed: np.ndarray) -> Tensor:
        asked.append(len(logits))
        return draw_by_terms(logits, packed)

    draws.use_on_cpu(draw)
    assert draws.draw_from_logits(*terms).tolist() == expected
    assert asked == [NUM_ROWS]
