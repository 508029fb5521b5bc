"""Weights of 8 bits on GPUs: as near as their rounding allows, and the memory they take."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import Qwen3Config

from models.checkpoint.memory_estimate import memory_estimate
from models.gpu.fp8 import Fp8Linear, fp8_linear, round_rows
from models.gpu.products import int8_linear
from models.layers.linear import plain_linear
from models.layers.quantization import quantize_weight
from models.parallel.layers import num_local_bytes
from tests.cases.models.llama_family import CONFIGS, SIZES, TEXT, chunked_logits, write
from tests.fakes.engines import tiny_config
from tests.models.gpu.test_decoder import decode_by, paged_runner

LARGEST = 448.0


def random(*shape: int, dtype: torch.dtype = torch.bfloat16, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def test_rows_are_rounded_by_scales_of_their_own() -> None:
    rows = random(5, 64) * torch.tensor([[1e-4], [1.0], [300.0], [0.0], [1.0]])
    rounded, scales = round_rows(rows)
    assert rounded.dtype == torch.float8_e4m3fn
    assert scales.shape == (5, 1)
    back = rounded.float() * scales
    assert bool((back[3] == 0).all())
    largest = rows.float().abs().amax(dim=1)
    torch.testing.assert_close(back.abs().amax(dim=1), largest, rtol=1e-3, atol=0)
    # Three bits of mantissa: a sixteenth of each number, and of the least step near zero.
    assert bool(((back - rows.float()).abs() <= rows.float().abs() / 16 + scales * 2**-9).all())


def test_a_product_is_that_of_the_rounded_numbers() -> None:
    weight, bias, rows = random(48, 64), random(48, seed=1), random(7, 64, seed=2)
    linear = fp8_linear(weight, bias)
    assert isinstance(linear, Fp8Linear)
    rounded, scales = round_rows(rows)
    expected = (rounded.float() * scales) @ (linear.weight.float() * linear.scales.T).T + bias
    torch.testing.assert_close(linear(rows).float(), expected, rtol=0.02, atol=0.02)
    whole = rows.float() @ weight.float().T + bias
    assert float((linear(rows) - whole).std() / whole.std()) < 0.05
    assert linear(rows[:0]).shape == (0, 48)


def test_sizes_that_the_product_refuses_stay_as_they_are() -> None:
    for shape in ((48, 40), (40, 48)):
        linear = fp8_linear(random(*shape), None)
        assert type(linear) is torch.nn.Linear
        assert linear(random(2, shape[1])).shape == (2, shape[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_the_kernel_rounds_as_torch_does(dtype: torch.dtype) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    from models.gpu.kernels.rounding import round_rows as by_kernel

    rows = random(6, 100, dtype=dtype)
    rows[4] = 0
    plain, plain_scales = round_rows(rows)
    got, scales = by_kernel(rows, LARGEST, 1e-12)
    torch.testing.assert_close(scales, plain_scales)
    # The interpreter loses the carry where a number is rounded up to a power of two.
    is_power = plain.float().abs().frexp().mantissa == 0.5
    near = (got.float() - plain.float()).abs() <= plain.float().abs() / 8 + 2**-9
    assert bool((near | is_power).all())
    assert float(near.float().mean()) > 0.95


def test_a_model_of_float8_is_near_and_takes_what_was_estimated(tmp_path: Path) -> None:
    write(CONFIGS["qwen3"], tmp_path)
    loaded = paged_runner(tmp_path, graphs="off", dtype="bfloat16")
    expected = chunked_logits(loaded)
    decoder, kept = decode_by(loaded, tmp_path, fp8_linear, plain_linear)
    assert sum(isinstance(each, Fp8Linear) for each in decoder.products()) == 4 * 3
    assert type(decoder.products()[-1]) is torch.nn.Linear
    logits = chunked_logits(loaded)
    assert logits.shape == expected.shape == (len(TEXT), SIZES["vocab_size"])
    assert float((logits - expected).std() / expected.std()) < 0.25
    config = tiny_config(tmp_path, device="cuda", dtype="bfloat16", quantization="fp8")
    assert memory_estimate(config).weight_bytes == num_local_bytes(kept)


def rounded_linear(weight: Tensor, bias: Tensor | None) -> torch.nn.Linear:
    """torch's own layer with the numbers that 8 bits stand for."""
    integers, scales = quantize_weight(weight)
    return plain_linear(integers * scales.unsqueeze(1), bias)


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_model_of_int8_computes_what_its_rounded_weights_do(
    tmp_path: Path, is_tied: bool
) -> None:
    """The same integers and scales, summed by other products; and it takes what was estimated."""
    pytest.importorskip("triton", reason="Triton is not installed")
    small = SIZES | {"num_hidden_layers": 1, "tie_word_embeddings": is_tied}
    write(Qwen3Config(**small, head_dim=16), tmp_path)
    runner = paged_runner(tmp_path, graphs="off")
    whole = chunked_logits(runner)
    decode_by(runner, tmp_path, rounded_linear, rounded_linear)
    by_torch = chunked_logits(runner)
    _, kept = decode_by(runner, tmp_path, int8_linear, int8_linear)
    by_gpu = chunked_logits(runner)
    torch.testing.assert_close(by_gpu, by_torch, rtol=1e-4, atol=1e-3)
    assert not torch.equal(by_gpu, whole)
    config = tiny_config(tmp_path, device="cuda", quantization="int8")
    assert memory_estimate(config).weight_bytes == num_local_bytes(kept)
