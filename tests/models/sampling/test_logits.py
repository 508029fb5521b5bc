"""The score function against a plain reference, and its independence of the batch."""

import math

import pytest
import torch

from models.protocol.messages import Sampling
from models.sampling.logits import is_allowed, process_logits
from models.sampling.penalties import TokenHistory


def reference(logits: torch.Tensor, sampling: Sampling, allowed: set[int] | None) -> torch.Tensor:
    """One row, the slow and obvious way."""
    scores = [
        value if allowed is None or token in allowed else -math.inf
        for token, value in enumerate(logits.tolist())
    ]
    if sampling.temperature == 0:
        return torch.tensor(scores)
    scores = [value / sampling.temperature for value in scores]
    if sampling.min_p > 0:
        cut = max(scores) + math.log(sampling.min_p)
        scores = [value if value >= cut else -math.inf for value in scores]
    if 0 < sampling.top_k < len(scores):
        cut = sorted(scores, reverse=True)[sampling.top_k - 1]
        scores = [value if value >= cut else -math.inf for value in scores]
    if sampling.top_p < 1:
        weights = [math.exp(value - max(scores)) for value in scores]
        total = sum(weights)  # of what min-p and top-k left
        before, cut = 0.0, -math.inf
        for value in sorted(scores, reverse=True):
            if before >= sampling.top_p * total:
                break
            cut = value
            before += math.exp(value - max(scores))
        scores = [value if value >= cut else -math.inf for value in scores]
    return torch.tensor(scores)


def mask_of(allowed: set[int], num_words: int) -> bytes:
    return sum(1 << token for token in allowed).to_bytes(4 * num_words, "little")


CASES = {
    "greedy": Sampling(temperature=0, top_k=3, top_p=0.1),
    "plain": Sampling(),
    "cold": Sampling(temperature=0.3),
    "top_k": Sampling(top_k=5),
    "top_k_1": Sampling(top_k=1),
    "top_k_beyond_vocabulary": Sampling(top_k=5000),
    "top_p": Sampling(top_p=0.7),
    "top_p_tiny": Sampling(top_p=1e-6),
    "top_p_flat": Sampling(temperature=50.0, top_p=0.95),
    "both": Sampling(temperature=0.8, top_k=40, top_p=0.9),
    "min_p": Sampling(min_p=0.05),
    "min_p_flat": Sampling(temperature=30.0, min_p=0.9),
    "min_p_1": Sampling(min_p=1.0),
    "min_p_and_top_p": Sampling(temperature=1.5, min_p=0.1, top_p=0.8),
    "all_three": Sampling(temperature=1.2, min_p=0.02, top_k=20, top_p=0.95),
}


@pytest.mark.parametrize("vocab_size", [50, 1000])
@pytest.mark.parametrize("is_masked", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_scores_equal_the_reference(name: str, is_masked: bool, vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(list(CASES).index(name) + vocab_size)
    logits = 3 * torch.randn(1, vocab_size, generator=generator)
    allowed = set(range(3, vocab_size, 2)) if is_masked else None
    mask = mask_of(allowed, -(-vocab_size // 32)) if allowed is not None else None
    scores = process_logits(logits, [CASES[name]], [mask])[0]
    expected = reference(logits[0], CASES[name], allowed)
    assert torch.equal(scores.isfinite(), expected.isfinite())
    torch.testing.assert_close(scores, expected, rtol=1e-6, atol=0)


def test_a_row_does_not_depend_on_its_batch() -> None:
    """With every term of a score: masks, penalties, forbidden ids and biases."""
    generator = torch.Generator().manual_seed(1)
    samplings = [
        *CASES.values(),
        Sampling(temperature=200.0, top_p=0.99),
        Sampling(top_k=700),
        Sampling(
            presence_penalty=0.5, frequency_penalty=0.25, repetition_penalty=2.0, temperature=0.5
        ),
        Sampling(frequency_penalty=0.3, top_p=0.8),
        Sampling(presence_penalty=-1.0, min_p=0.1),
        Sampling(repetition_penalty=1.3, top_k=3),
        Sampling(temperature=0, repetition_penalty=1.7),
        Sampling(logit_bias=((5, 1.25), (7, -0.3)), top_p=0.9),
        Sampling(temperature=0, logit_bias=((1, 4.0),)),
        Sampling(),
    ]
    num_rows, vocab_size = len(samplings), 997
    logits = 4 * torch.randn(num_rows, vocab_size, generator=generator)
    masks = [mask_of(set(range(i, vocab_size, 3)), 32) if i % 2 else None for i in range(num_rows)]
    generated = [3, 3, 4, 9] * num_rows
    history = TokenHistory(vocab_size, 2, [1, 2, *generated])
    num_uncounted = 5
    counts = [
        *([None] * num_uncounted),
        *history.rows(2, generated, num_rows - num_uncounted),
    ]
    forbidden = [[i, 250] if i % 3 else [] for i in range(num_rows)]
    together = process_logits(logits, samplings, masks, counts, forbidden)
    for i in range(num_rows):
        part = slice(i, i + 1)
        own = (logits[part], samplings[part], masks[part], counts[part], forbidden[part])
        assert torch.equal(process_logits(*own)[0], together[i]), i


def test_the_input_is_not_changed() -> None:
    logits = torch.randn(3, 40)
    before = logits.clone()
    process_logits(logits, [Sampling(top_k=2, top_p=0.5)] * 3, [mask_of({1, 2}, 2), None, None])
    assert torch.equal(logits, before)


def test_equal_scores_stay_or_go_together() -> None:
    logits = torch.tensor([[2.0, 1.0, 1.0, 1.0, 0.0]])
    by_k = process_logits(logits, [Sampling(top_k=2)], [None])[0]
    assert by_k.isfinite().tolist() == [True, True, True, True, False]
    by_p = process_logits(logits, [Sampling(top_p=0.6)], [None])[0]
    assert by_p.isfinite().tolist() == [True, True, True, True, False]


def test_many_equal_scores_do_not_break_the_candidate_search() -> None:
    scores = process_logits(torch.zeros(1, 3000), [Sampling(top_p=0.5)], [None])[0]
    assert scores.isfinite().all()


@pytest.mark.parametrize("num_words", [1, 3, 4])
def test_a_mask_may_be_shorter_or_longer_than_the_vocabulary(num_words: int) -> None:
    mask = mask_of({0, 31}, 1).ljust(4 * num_words, b"\xff")
    scores = process_logits(torch.zeros(1, 70), [Sampling()], [mask])[0]
    beyond = set(range(32, min(70, 32 * num_words)))
    assert {token for token in range(70) if scores[token].isfinite()} == {0, 31} | beyond


def test_is_allowed_reads_the_same_bits() -> None:
    mask = mask_of({0, 9, 31, 63}, 2)
    assert [token for token in range(80) if is_allowed(mask, token)] == [0, 9, 31, 63]
