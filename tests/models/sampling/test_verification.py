"""The accept rule, case by case, and the distribution of what it commits."""

import numpy as np
import pytest
import torch
from scipy import stats

from models.protocol.messages import Sampling
from models.sampling.logits import process_logits
from models.sampling.verification import Acceptance, accept_matching, draw_ids
from tests.cases.distribution import coupled_acceptance

EOS = 99


@pytest.mark.parametrize(
    ("draft", "drawn", "expected"),
    [
        pytest.param([1, 2, 3], [1, 2, 3, 4], Acceptance(3, 4), id="all-accepted"),
        pytest.param([1, 2, 3], [5, 2, 3, 4], Acceptance(0, 5), id="first-rejected"),
        pytest.param([1, 2, 3], [1, 6, 3, 4], Acceptance(1, 6), id="middle-rejected"),
        pytest.param([1, 2, 3], [1, 2, 7, 4], Acceptance(2, 7), id="last-rejected"),
        pytest.param([], [8], Acceptance(0, 8), id="no-draft"),
        pytest.param([1, EOS, 3], [1, EOS, 3, 4], Acceptance(1, EOS), id="stops-at-eos"),
        pytest.param([1, EOS], [1, EOS, 0], Acceptance(1, EOS), id="eos-drafted-last"),
        pytest.param([1, 2, 3], [1, 2], Acceptance(1, 2), id="fewer-rows"),
        pytest.param([1, 2, 3], [4], Acceptance(0, 4), id="one-row"),
    ],
)
def test_accept_matching(draft: list[int], drawn: list[int], expected: Acceptance) -> None:
    assert accept_matching(draft, drawn, {EOS}) == expected


def test_greedy_takes_the_lowest_of_equal_tokens() -> None:
    scores = torch.tensor([[0.0, 2.0, 2.0], [1.0, 1.0, 1.0]])
    assert draw_ids(scores, [Sampling(temperature=0)] * 2, [0, 1]).tolist() == [1, 0]


def test_greedy_rows_get_no_noise_in_a_mixed_batch() -> None:
    generator = torch.Generator().manual_seed(3)
    scores = torch.randn(6, 500, generator=generator)
    samplings = [Sampling(temperature=float(row % 2), seed=row) for row in range(6)]
    together = draw_ids(scores, samplings, list(range(6))).tolist()
    alone = [int(draw_ids(scores[r : r + 1], [samplings[r]], [r])) for r in range(6)]
    assert together == alone
    assert together[::2] == scores.argmax(dim=1)[::2].tolist()


def test_the_first_committed_token_follows_the_target_whatever_the_draft() -> None:
    """Coupled verification of one draft token: chi-square against the target's distribution."""
    num_trials = 5_000
    generator = torch.Generator().manual_seed(0)
    target_logits = torch.randn(8, generator=generator)
    draft_logits = target_logits + torch.randn(8, generator=generator)
    samplings = [Sampling(seed=seed, top_p=0.9) for seed in range(num_trials)]
    rows = {
        name: process_logits(logits.expand(num_trials, -1), samplings, [None] * num_trials)
        for name, logits in {"target": target_logits, "draft": draft_logits}.items()
    }
    positions = [5] * num_trials
    drafted = draw_ids(rows["draft"], samplings, positions).tolist()
    drawn = draw_ids(rows["target"], samplings, positions).tolist()
    committed = []
    num_accepted = 0
    for x, t in zip(drafted, drawn, strict=True):
        verdict = accept_matching([x], [t, 0], ())
        num_accepted += verdict.num_accepted
        committed.append(x if verdict.num_accepted else verdict.token)
    probs = torch.softmax(rows["target"][0].double(), dim=0).numpy()
    counts = np.bincount(committed, minlength=8)
    assert counts[probs == 0].sum() == 0
    kept = probs > 0
    assert stats.chisquare(counts[kept], probs[kept] * num_trials).pvalue > 1e-4
    # P(x = t) = sum_x 1 / sum_y max(p_y / p_x, q_y / q_x), for exponential races.
    assert num_accepted / num_trials == pytest.approx(
        coupled_acceptance(probs, torch.softmax(rows["draft"][0].double(), dim=0).numpy()),
        abs=4 * 0.5 / num_trials**0.5,
    )
