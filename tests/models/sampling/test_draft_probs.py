"""Truncated draft distributions: what stays, what is drawn, what travels, what is refused."""

import numpy as np
import pytest
import torch
from scipy import stats

from models.protocol.messages import DraftProbs
from models.sampling import draft_probs
from models.sampling.draft_probs import NUM_PAIRS, certain_row, draw_truncated, pack, unpack

VOCAB_SIZE = 500


def random_scores(num_rows: int, *, seed: int = 0) -> torch.Tensor:
    return 2 * torch.randn(num_rows, VOCAB_SIZE, generator=torch.Generator().manual_seed(seed))


def test_the_most_likely_tokens_stay_renormalised() -> None:
    scores = random_scores(3)
    _, rows = draw_truncated(scores, [1, 2, 3], [5, 6, 7])
    for row_scores, row in zip(scores, rows, strict=True):
        assert set(row.token_ids) == set(torch.topk(row_scores, NUM_PAIRS).indices.tolist())
        kept = torch.softmax(row_scores[row.token_ids.tolist()].double(), dim=0)
        np.testing.assert_allclose(row.probs, kept.numpy(), rtol=1e-6)
        assert row.probs.dtype == np.float32
        assert abs(row.probs.sum(dtype=np.float64) - 1) < 1e-6


@pytest.mark.parametrize("num_tied", [1, 5, VOCAB_SIZE])
def test_of_equal_scores_the_lowest_ids_stay(
    num_tied: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(draft_probs, "NUM_PAIRS", 4)
    scores = torch.full((2, VOCAB_SIZE), -5.0)
    scores[:, VOCAB_SIZE - num_tied :] = 1.0
    scores[1] = random_scores(1)[0]
    _, rows = draw_truncated(scores, [1, 1], [0, 0])
    first_tied = VOCAB_SIZE - num_tied
    expected = list(range(first_tied, VOCAB_SIZE))[:4]
    expected = sorted(expected + list(range(4 - len(expected))))
    assert rows[0].token_ids.tolist() == expected
    assert set(rows[1].token_ids) == set(torch.topk(scores[1], 4).indices.tolist())


def test_a_row_does_not_depend_on_its_batch() -> None:
    scores, seeds, positions = random_scores(4), [1, 2, 2, 3], [4, 4, 5, 6]
    tokens, rows = draw_truncated(scores, seeds, positions)
    for i in range(4):
        (token,), (row,) = draw_truncated(scores[i : i + 1], seeds[i : i + 1], positions[i : i + 1])
        assert token == tokens[i]
        assert row.token_ids.tolist() == rows[i].token_ids.tolist()
        assert row.probs.tobytes() == rows[i].probs.tobytes()


def test_the_draw_follows_the_row_it_comes_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(draft_probs, "NUM_PAIRS", 8)
    num_draws = 5000
    scores = random_scores(1).expand(num_draws, -1)
    tokens, rows = draw_truncated(scores, range(num_draws), [3] * num_draws)
    counts = np.bincount(tokens, minlength=VOCAB_SIZE)
    assert counts[rows[0].token_ids].sum() == num_draws
    expected = rows[0].probs.astype(np.float64) * num_draws
    expected *= num_draws / expected.sum()
    assert stats.chisquare(counts[rows[0].token_ids], expected).pvalue > 1e-3


def test_forbidden_tokens_have_probability_0() -> None:
    scores = torch.full((1, VOCAB_SIZE), -torch.inf)
    scores[0, [7, 300]] = torch.tensor([0.0, 1.0])
    (token,), (row,) = draw_truncated(scores, [1], [2])
    assert token in (7, 300)
    assert row.prob_of(7) + row.prob_of(300) == pytest.approx(1)
    assert row.prob_of(8) == 0


def test_a_small_vocabulary_is_kept_whole() -> None:
    _, (row,) = draw_truncated(random_scores(1)[:, :10], [1], [2])
    assert row.token_ids.tolist() == list(range(10))


def test_rows_travel_bit_for_bit() -> None:
    tokens, rows = draw_truncated(random_scores(3), [1, 2, 3], [5, 6, 7])
    message = pack(rows)
    assert message is not None
    assert (message.num_pairs, len(message.probs)) == (NUM_PAIRS, 3 * 4 * NUM_PAIRS)
    for sent, got in zip(rows, unpack(message, tokens, VOCAB_SIZE), strict=True):
        assert sent.token_ids.tobytes() == got.token_ids.tobytes()
        assert sent.probs.tobytes() == got.probs.tobytes()
    assert pack([]) is None


def test_a_certain_token_has_probability_1() -> None:
    row = certain_row(9)
    assert (row.prob_of(9), row.prob_of(8)) == (1.0, 0.0)


def make_probs(
    ids: list[int], probs: list[float], *, num_pairs: int = 2, cut: int = 0
) -> DraftProbs:
    return DraftProbs(
        num_pairs=num_pairs,
        token_ids=np.array(ids, dtype="<i4").tobytes()[: 4 * len(ids) - cut],
        probs=np.array(probs, dtype="<f4").tobytes(),
    )


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        pytest.param(make_probs([1, 2], [0.5, 0.5], num_pairs=0), "num_pairs must be within 1..9"),
        pytest.param(make_probs([1, 2], [0.5, 0.5], num_pairs=10), "num_pairs .* got 10"),
        pytest.param(make_probs([1, 2], [0.5, 0.5], cut=1), "token_ids must have 8 bytes .* got 7"),
        pytest.param(make_probs([1, 2], [0.5]), "probs must have 8 bytes .* got 4"),
        pytest.param(make_probs([1, 2] * 2, [0.5] * 4), "must have 8 bytes for 1 draft"),
        pytest.param(make_probs([1, 9], [0.5, 0.5]), r"within 0\.\.8, got 1\.\.9"),
        pytest.param(make_probs([1, -1], [0.5, 0.5]), r"got -1\.\.1"),
        pytest.param(make_probs([1, 2], [1.5, -0.5]), "finite and not negative"),
        pytest.param(make_probs([1, 2], [0.5, float("nan")]), "finite and not negative"),
        pytest.param(make_probs([1, 2], [0.5, float("inf")]), "finite and not negative"),
        pytest.param(make_probs([1, 2], [0.5, 0.4]), "sum to 1 .* got 0.9"),
        pytest.param(make_probs([2, 3], [0.5, 0.5]), "gives draft token 1 probability 0"),
        pytest.param(make_probs([1, 2], [0.0, 1.0]), "gives draft token 1 probability 0"),
    ],
)
def test_a_malformed_message_is_refused(message: DraftProbs, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        unpack(message, [1], 9)


def test_a_row_may_be_filled_up_with_a_repeated_id() -> None:
    (row,) = unpack(make_probs([1, 1], [1.0, 0.0]), [1], 9)
    assert row.prob_of(1) == 1.0
