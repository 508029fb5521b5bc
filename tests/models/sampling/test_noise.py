"""The noise is a pure function with the right distribution; its inputs leave no visible trace."""

import random

import numpy as np
import pytest
import torch
from scipy import stats

from models.sampling.noise import (
    DOMAIN_DRAFT,
    DOMAIN_TEST,
    gumbel_noise,
    gumbel_noise_at,
    stream_keys,
    uniform,
)


def uniforms(noise: torch.Tensor) -> np.ndarray:
    """Back from Gumbel to uniform on (0, 1)."""
    return np.exp(-np.exp(-noise.double().numpy()))


def test_known_values_pin_the_generator() -> None:
    noise = gumbel_noise([0, 2**64 - 1], [0, 12345], 3)
    expected = reference_rows([(0, 0), (2**64 - 1, 12345)], 3)
    np.testing.assert_allclose(noise.numpy(), expected, rtol=2e-6, atol=2e-7)


GOLDEN = 0x9E3779B97F4A7C15


def mix(x: int) -> int:
    x &= 2**64 - 1
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
    return x ^ (x >> 31)


def row_key(seed: int, position: int, domain: int = 0) -> int:
    key = mix((mix((domain + 1) * GOLDEN) ^ seed) + GOLDEN)
    return mix(key + (position + 1) * 0xD1342543DE82EF95)


def reference_rows(keys: list[tuple[int, int]], vocab_size: int) -> np.ndarray:
    """The documented construction in Python ints and float64."""
    rows = []
    for seed, position in keys:
        key = row_key(seed, position)
        outputs = [mix(key + (t + 1) * GOLDEN) for t in range(vocab_size)]
        tails = np.array([((x >> 12) + 0.5) / 2**52 for x in outputs])
        rows.append(-np.log(-np.log1p(-tails)))
    return np.array(rows)


@pytest.mark.parametrize("num_rows", [1, 11, 12, 500])
def test_keys_of_many_rows_are_those_of_each(num_rows: int) -> None:
    """Few are computed in Python ints, many by numpy, modulo 2^64 in both."""
    draw = random.Random(num_rows)
    seeds = [draw.choice([0, 2**64 - 1, draw.getrandbits(64)]) for _ in range(num_rows)]
    positions = [draw.choice([0, 2**31, draw.randrange(10**6)]) for _ in range(num_rows)]
    keys = stream_keys(seeds, positions, DOMAIN_DRAFT)
    pairs = zip(seeds, positions, strict=True)
    expected = [row_key(*pair, DOMAIN_DRAFT) for pair in pairs]
    assert keys.dtype == np.int64
    assert keys.view(np.uint64).tolist() == expected


@pytest.mark.parametrize("vocab_size", [1, 7, 1000, 4099])
def test_a_row_does_not_depend_on_its_batch(vocab_size: int) -> None:
    seeds, positions = [5, 5, 6, 2**63], [0, 1, 0, 17]
    together = gumbel_noise(seeds, positions, vocab_size)
    for row, (seed, position) in enumerate(zip(seeds, positions, strict=True)):
        assert torch.equal(gumbel_noise([seed], [position], vocab_size)[0], together[row])


def test_token_noise_does_not_depend_on_the_vocabulary_size() -> None:
    assert torch.equal(gumbel_noise([3], [4], 1000)[0, :100], gumbel_noise([3], [4], 100)[0])


def test_noise_at_some_tokens_is_that_of_the_whole_row() -> None:
    seeds, positions = [3, 2**64 - 1], [4, 70_000]
    ids = torch.tensor([[0, 999, 17], [5, 5, 1]])
    whole = gumbel_noise(seeds, positions, 1000, domain=DOMAIN_DRAFT)
    some = gumbel_noise_at(seeds, positions, ids, DOMAIN_DRAFT)
    assert torch.equal(some, whole.gather(1, ids))


def test_single_uniforms_are_uniform_and_keyed() -> None:
    values = np.array([uniform(seed, seed // 7, DOMAIN_TEST) for seed in range(20_000)])
    assert stats.kstest(values, "uniform").pvalue > 1e-4
    assert abs(np.corrcoef(values[:-1], values[1:])[0, 1]) < 4.5 / np.sqrt(len(values))
    assert uniform(5, 6, DOMAIN_TEST) == uniform(5, 6, DOMAIN_TEST)
    keys = [(5, 6, DOMAIN_TEST), (6, 5, DOMAIN_TEST), (5, 7, DOMAIN_TEST), (5, 6, DOMAIN_DRAFT)]
    assert len({uniform(*key) for key in keys}) == len(keys)


def test_domains_and_inputs_give_different_streams() -> None:
    rows = [
        gumbel_noise([1], [2], 64),
        gumbel_noise([2], [1], 64),
        gumbel_noise([1], [3], 64),
        gumbel_noise([1], [2], 64, domain=1),
    ]
    assert len({tuple(row[0].tolist()) for row in rows}) == len(rows)


@pytest.mark.parametrize("seed", [0, 1, 2**40 + 3])
def test_the_law_is_uniform(seed: int) -> None:
    values = uniforms(gumbel_noise([seed] * 100, range(100), 500)).ravel()
    counts = np.bincount((values * 256).astype(int), minlength=256)
    assert stats.chisquare(counts).pvalue > 1e-4
    assert stats.kstest(values, "uniform").pvalue > 1e-4


@pytest.mark.parametrize("lag", ["token", "position", "seed", "position_and_token"])
def test_neighbours_are_independent(lag: str) -> None:
    if lag == "seed":
        grid = uniforms(gumbel_noise(list(range(200)), [7] * 200, 500))
    else:
        grid = uniforms(gumbel_noise([11] * 200, range(200), 500))
    pairs = {
        "token": (grid[:, :-1], grid[:, 1:]),
        "position": (grid[:-1], grid[1:]),
        "seed": (grid[:-1], grid[1:]),
        "position_and_token": (grid[:-1, 1:], grid[1:, :-1]),
    }
    left, right = (side.ravel() for side in pairs[lag])
    table = np.zeros((16, 16))
    np.add.at(table, ((left * 16).astype(int), (right * 16).astype(int)), 1)
    assert stats.chi2_contingency(table).pvalue > 1e-4
    assert abs(np.corrcoef(left, right)[0, 1]) < 4.5 / np.sqrt(left.size)


def test_argmax_with_noise_samples_the_softmax() -> None:
    logits = torch.tensor([1.0, 0.0, -1.0, 2.0, 0.5])
    draws = (logits + gumbel_noise([42] * 20_000, range(20_000), 5)).argmax(dim=1)
    expected = torch.softmax(logits.double(), dim=0).numpy() * 20_000
    assert stats.chisquare(np.bincount(draws.numpy(), minlength=5), expected).pvalue > 1e-4


def test_the_tail_is_not_cut_off() -> None:
    noise = gumbel_noise([9] * 32, range(32), 65_536)
    assert noise.isfinite().all()
    # The largest of n draws is ln n + Gumbel: 14.6 here, and a float32 uniform could not pass 16.7.
    assert 12.0 < noise.max().item() < 32.0
    beyond = (noise > 10.0).sum().item()
    assert abs(beyond - noise.numel() * np.exp(-10.0)) < 5 * np.sqrt(noise.numel() * np.exp(-10.0))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_the_device_does_not_matter() -> None:
    seeds, positions = [1, 2**63 + 5], [0, 900]
    on_cpu = gumbel_noise(seeds, positions, 50_000)
    on_gpu = gumbel_noise(seeds, positions, 50_000, "cuda").cpu()
    torch.testing.assert_close(on_gpu, on_cpu, rtol=1e-5, atol=1e-6)
