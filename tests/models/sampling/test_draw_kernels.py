"""A draw by kernels: the tokens of the plain path, and the cuts of its definition."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
import torch
from msgspec.structs import replace
from torch import Tensor

from loadtest.gpu_day.draws import CountedOperations
from models.protocol.messages import Sampling
from models.sampling import draws
from models.sampling.logits import shaped_scores
from models.sampling.noise import gumbel_noise, stream_keys
from models.sampling.verification import draw_ids
from tests.cases.models.draw_rows import VOCAB_SIZE, random_rows

pytest.importorskip("triton", reason="Triton is not installed")

NEAR = 2e-5  # what the last bits of two logarithms come to


def drawn(logits: Tensor, samplings: list[Sampling], positions: list[int]) -> Tensor:
    return draws.draw_by_kernels(logits, samplings, positions)


def same_or_near_tie(
    logits: Tensor, samplings: list[Sampling], positions: list[int]
) -> tuple[int, int]:
    """Rows that drew the same token, and rows whose two tokens are equally good but for rounding.

    Any other row fails.
    """
    scores = shaped_scores(logits, samplings)
    expected = draw_ids(scores, samplings, positions)
    got = drawn(logits, samplings, positions)
    differing = (expected != got).nonzero()[:, 0].tolist()
    for row in differing:
        assert samplings[row].temperature > 0, row
        noise = gumbel_noise([samplings[row].seed], [positions[row]], VOCAB_SIZE)[0]
        values = (scores[row] + noise)[[int(expected[row]), int(got[row])]]
        assert float(values[0] - values[1]) <= NEAR, (row, samplings[row], values)
    return len(logits) - len(differing), len(differing)


@pytest.mark.parametrize("seed", range(4))
def test_the_same_tokens_for_random_rows(seed: int) -> None:
    num_same, num_near = same_or_near_tie(*random_rows(seed, 32))
    assert num_same >= 31, num_near


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_same_tokens_for_1_000_rows_without_a_cut() -> None:
    """10,000 were run once, and so were rows with cuts: interpreted, one takes 0.2 s."""
    for seed in range(4):
        logits, samplings, positions = random_rows(100 + seed, 250)
        uncut = [replace(one, top_k=0, top_p=1.0, min_p=0.0) for one in samplings]
        _, num_near = same_or_near_tie(logits, uncut, positions)
        assert num_near <= 1


def test_a_row_in_which_nothing_is_allowed_gives_some_id() -> None:
    logits = torch.full((2, VOCAB_SIZE), -torch.inf)
    terms = [Sampling(temperature=1.0, top_k=5, top_p=0.5, min_p=0.1), Sampling(temperature=0)]
    assert drawn(logits, terms, [3, 4]).tolist() == [0, 0]


def test_of_tied_logits_the_lowest_id_is_taken_without_a_temperature() -> None:
    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, [2100, 2500, 700]] = 4.0
    assert drawn(logits, [Sampling(temperature=0)], [0]).tolist() == [700]


@pytest.mark.parametrize(
    "terms",
    [
        Sampling(temperature=1.0, top_k=3),
        Sampling(temperature=1.0, top_p=0.5),
        Sampling(temperature=1.0, min_p=1.0),
    ],
    ids=["top_k", "top_p", "min_p"],
)
def test_tokens_of_equal_score_stay_together(terms: Sampling) -> None:
    """1,000 tokens tie at the top: whatever cuts among them keeps all."""
    from models.sampling.kernels.cut import row_cuts

    logits = torch.zeros(1, VOCAB_SIZE)
    logits[0, ::3] = 2.5
    cut = row_cuts(logits, torch.from_numpy(draws.pack_draws([terms], [9], VOCAB_SIZE)))
    assert cut.tolist() == [2.5]


@pytest.mark.parametrize(
    ("terms", "most"),
    [
        (Sampling(temperature=0.0), 1),
        (Sampling(temperature=0.8), 5),
        (Sampling(temperature=0.8, top_p=0.9, top_k=50, min_p=0.1), 5),
    ],
    ids=["greedy", "temperature", "cut"],
)
def test_launches_of_a_draw(terms: Sampling, most: int) -> None:
    """Three kernels, and the upload of the terms; or a fill in place of the cut."""
    logits = torch.empty(6, VOCAB_SIZE, device="meta")
    with CountedOperations() as counted:
        ids = draws.draw_from_logits(logits, [terms] * 6, list(range(6)))
    assert counted.count <= most
    assert (ids.shape, ids.device.type) == ((6,), "meta")


def test_terms_are_packed_by_their_bits() -> None:
    rows = [Sampling(temperature=0.7, top_k=5, top_p=0.9, min_p=0.1, seed=3), Sampling(seed=4)]
    rows.append(Sampling(temperature=0, top_k=5, top_p=0.9))
    packed = draws.pack_draws([rows[1], *rows], [7, 8, 9, 10], VOCAB_SIZE)
    numbers = packed.view(np.float64)
    assert packed[:, 0].tolist() == stream_keys([4, 3, 4, 0], [7, 8, 9, 10]).tolist()
    assert numbers[:, 1].tolist() == [1.0, 0.7, 1.0, 0.0]
    assert numbers[:, 2].tolist() == [-math.inf, math.log(0.1), -math.inf, -math.inf]
    assert packed[:, 3].tolist() == [VOCAB_SIZE, 5, VOCAB_SIZE, VOCAB_SIZE]
    assert numbers[:, 4].tolist() == [1.0, 0.9, 1.0, 1.0]


def num_calls(rows_each: int) -> int:
    """Functions that are called to pack the terms of 16 sessions with so many rows each."""
    sessions = [Sampling(temperature=0.8, top_p=0.9, seed=seed) for seed in range(16)]
    samplings = [one for one in sessions for _ in range(rows_each)]
    calls: list[str] = []
    sys.setprofile(lambda frame, event, function: calls.append(event))
    try:
        draws.pack_draws(samplings, list(range(len(samplings))), VOCAB_SIZE)
    finally:
        sys.setprofile(None)
    return sum(event.endswith("call") for event in calls)


def test_a_row_costs_the_host_few_calls() -> None:
    """The GPU waits meanwhile: terms are a session's, and noise is computed for all rows."""
    num_rows = 16 * 6
    assert num_calls(12) - num_calls(6) <= 3 * num_rows
