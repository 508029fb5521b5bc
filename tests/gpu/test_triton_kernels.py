"""Triton's kernels on a GPU: what the interpreter said of them on a CPU."""

from __future__ import annotations

import pytest
import torch

pytest.importorskip("triton", reason="Triton is not installed")

from models.engine.runner import ModelRunner
from models.gpu.fp8 import LEAST_CAPABILITY, Fp8Linear, round_rows
from models.gpu.kernels.product import BLOCK_ROWS, InvariantLinear
from models.gpu.operands import Norm, Rotation, Slots
from models.gpu.operations import TORCH, triton_operations
from models.gpu.products import int8_linear
from models.layers.quantization import quantize_weight
from models.sampling.draws import draw_from_logits
from models.sampling.logits import shaped_scores
from models.sampling.noise import gumbel_noise
from models.sampling.verification import draw_ids
from tests.cases.models.draw_rows import VOCAB_SIZE, random_rows
from tests.gpu.cuda_runners import runner

DTYPES = [torch.bfloat16, torch.float16]
NEAR = 1e-4  # what logarithms of two devices come to


def random(device: torch.device, *shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(device)


def assert_near(got: torch.Tensor, expected: torch.Tensor) -> None:
    step = torch.finfo(got.dtype).eps
    torch.testing.assert_close(got.float(), expected.float(), rtol=4 * step, atol=8 * step)


@pytest.mark.parametrize("seed", range(40))
def test_draws_are_those_of_a_cpu(cuda: torch.device, seed: int) -> None:
    """10,000 rows in all; where a token differs the two are equally good but for rounding."""
    logits, samplings, positions = random_rows(seed, 250)
    scores = shaped_scores(logits, samplings)
    expected = draw_ids(scores, samplings, positions)
    got = draw_from_logits(logits.to(cuda), samplings, positions).cpu()
    for row in (expected != got).nonzero()[:, 0].tolist():
        assert samplings[row].temperature > 0, row
        noise = gumbel_noise([samplings[row].seed], [positions[row]], VOCAB_SIZE)[0]
        values = (scores[row] + noise)[[int(expected[row]), int(got[row])]]
        assert abs(float(values[0] - values[1])) <= NEAR, (row, samplings[row])


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", [64, 1000, 4096, 8192])
def test_layers_are_those_of_torch(cuda: torch.device, width: int, dtype: torch.dtype) -> None:
    plain, kernels = TORCH, triton_operations()
    rows, update = (random(cuda, 7, width, seed=seed).to(dtype) for seed in range(2))
    norm = Norm(random(cuda, width, seed=2).to(dtype), 1e-5)
    for got, expected in zip(
        kernels.add_norm(update, rows, norm), plain.add_norm(update, rows, norm), strict=True
    ):
        assert_near(got, expected)
    assert_near(kernels.gate(rows), plain.gate(rows.float()).to(dtype))


@pytest.mark.parametrize("head_dim", [64, 128])
def test_heads_are_those_of_torch(cuda: torch.device, head_dim: int) -> None:
    angles = random(cuda, 100, head_dim, seed=1)
    positions = torch.tensor([0, 5, 99, 7, 8, 9], device=cuda)
    rotation = Rotation(angles.cos().bfloat16(), angles.sin().bfloat16(), positions)
    mixed = random(cuda, 6, 8 * head_dim).bfloat16()
    norm = Norm(random(cuda, 6, head_dim, seed=2).bfloat16(), 1e-6)
    found = []
    for operations in (TORCH, triton_operations()):
        keys = torch.zeros(40, 2, head_dim, dtype=torch.bfloat16, device=cuda)
        row_slots = torch.tensor([3, 4, 5, 39, 0, 20], device=cuda)
        slots = Slots(keys, torch.zeros_like(keys), row_slots)
        found.append((operations.place(mixed, rotation, norm, slots), slots.keys, slots.values))
    for plain, got in zip(*found, strict=True):
        # torch rounds the normed and the turned heads on the way, the kernel once at the end.
        torch.testing.assert_close(got.float(), plain.float(), rtol=0.03, atol=0.05)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("num_outputs", "num_inputs"), [(70, 130), (4096, 4096), (1024, 14336)])
def test_a_rows_product_does_not_depend_on_the_others(
    cuda: torch.device, num_outputs: int, num_inputs: int, dtype: torch.dtype
) -> None:
    linear = InvariantLinear(random(cuda, num_outputs, num_inputs).to(dtype), None)
    rows = random(cuda, 5 * BLOCK_ROWS + 7, num_inputs, seed=1).to(dtype)
    whole = linear(rows)
    expected = rows.double() @ linear.weight.double().T
    step = float(torch.finfo(dtype).eps) * num_inputs**0.5
    torch.testing.assert_close(whole.double(), expected, rtol=step, atol=4 * step)
    for first, stop in ((0, 1), (3, 9), (60, 60 + BLOCK_ROWS), (0, 300)):
        assert torch.equal(linear(rows[first:stop]), whole[first:stop])


def test_products_of_float8_are_those_of_a_cpu(cuda: torch.device) -> None:
    if torch.cuda.get_device_capability(cuda) < LEAST_CAPABILITY:
        pytest.skip("this GPU has no products of float8")
    weight, bias, rows = (random(cuda, *shape).bfloat16() for shape in ((96, 128), (96,), (7, 128)))
    on_gpu, on_cpu = Fp8Linear(weight, bias), Fp8Linear(weight.cpu(), bias.cpu())
    assert torch.equal(on_gpu.weight.cpu().float(), on_cpu.weight.float())
    assert torch.equal(on_gpu.scales.cpu(), on_cpu.scales)
    rounded, scales = round_rows(rows.cpu())
    product = (rounded.float() * scales) @ (on_cpu.weight.float() * on_cpu.scales.T).T
    expected = (product + bias.cpu().float()).bfloat16()
    torch.testing.assert_close(on_gpu(rows).cpu(), expected, rtol=0.02, atol=0.05)


def test_a_model_in_int8_is_near_and_the_same_for_any_number_of_rows() -> None:
    made: ModelRunner = runner(
        attention="varlen", graphs="auto", quantization="int8", batch_invariant=True
    )
    assert made.batch_invariant
    assert made.weight_bytes < runner(attention="varlen", graphs="off").weight_bytes


@pytest.mark.parametrize("num_rows", [1, 6, BLOCK_ROWS + 3])
def test_products_of_int8_are_those_of_its_numbers(cuda: torch.device, num_rows: int) -> None:
    weight, bias = random(cuda, 4096, 1024).bfloat16(), random(cuda, 4096, seed=1).bfloat16()
    linear = int8_linear(weight, bias)
    integers, scales = quantize_weight(weight)
    rows = random(cuda, num_rows, 1024, seed=2).bfloat16()
    rounded = integers.double() * scales.double()[:, None]
    expected = rows.double() @ rounded.T + bias.double()
    torch.testing.assert_close(linear(rows).double(), expected, rtol=0.01, atol=0.5)


@pytest.mark.parametrize("graphs", ["off", "auto"])
def test_the_self_test_agrees_with_batch_invariant(graphs: str) -> None:
    made: ModelRunner = runner(attention="varlen", graphs=graphs, batch_invariant=True)
    assert made.batch_invariant


def test_a_model_in_float8_is_near_and_captured() -> None:
    if torch.cuda.get_device_capability() < LEAST_CAPABILITY:
        pytest.skip("this GPU has no products of float8")
    made: ModelRunner = runner(attention="varlen", graphs="auto", quantization="fp8")
    assert made.graphs.num_graphs > 0
    assert made.weight_bytes < runner(attention="varlen", graphs="off").weight_bytes
