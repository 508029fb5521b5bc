"""Products of the compiled kernel: what they are, and that a row's bits are its own."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from models.cpu.kernels.parameters import NUM_ROWS, PACKED_ROWS
from models.cpu.ops import PassTable, buffer, room_for_packed
from models.cpu.product import Epilogue, KernelLinear
from models.cpu.program import Program
from models.layers.groups import Bits, group_weight
from models.packed_form import GROUP

pytestmark = pytest.mark.matrix

each_dtype = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
each_kind = pytest.mark.parametrize("bits", [None, 8, 4], ids=["whole", "q8", "q4"])
# Of the last number kept, and of a chain of float32 sums.
ROUNDING = {torch.float32: 4e-5, torch.bfloat16: 2**-8}
ROW_COUNTS = (1, 2, 3, 4, 5, 6, 7, 13, 17, 64)


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def weight_of(num_outputs: int, num_inputs: int, dtype: torch.dtype) -> Tensor:
    return (random(num_outputs, num_inputs, seed=1) / math.sqrt(num_inputs)).to(dtype)


def exact(rows: Tensor, weight: Tensor, bits: Bits | None) -> Tensor:
    """The product that a layer computes, in float64: rows are rounded where weights are."""
    if bits is None:
        return rows.double() @ weight.double().T
    num_inputs = rows.shape[-1]
    groups = nn.functional.pad(rows.float(), (0, -num_inputs % GROUP)).unflatten(-1, (-1, GROUP))
    most = groups.abs().amax(-1, keepdim=True)
    levels = torch.full_like(most, 127)  # a number would be divided by in two steps
    inverse = torch.where(most > 0, levels / most, 0.0)
    codes = (groups.double() * inverse.double()).round()
    taken = (codes * (most / levels).double()).flatten(-2)[..., :num_inputs]
    return taken @ group_weight(weight, bits).dequantized().double().T


def assert_close(found: Tensor, expected: Tensor, dtype: torch.dtype, times: float = 1.0) -> None:
    assert found.dtype == dtype
    torch.testing.assert_close(
        found.double(), expected, rtol=times * ROUNDING[dtype], atol=times * ROUNDING[dtype] / 8
    )


def added(layer: KernelLinear, others: Tensor, rows: Tensor) -> Tensor:
    """Others [R, N] plus the product, in one step."""
    rows, others = rows.contiguous(), others.contiguous()
    table, out = PassTable(), torch.empty_like(others)
    table.values[NUM_ROWS] = len(rows)
    for number, tensor in enumerate((rows, out, others)):
        table.put(buffer(number), tensor)
    between = room_for_packed(*rows.shape)
    table.put(PACKED_ROWS, between)
    for step in layer.steps(table, buffer(0), buffer(1), Epilogue(residual=buffer(2))):
        step.run(1)
    return out


@each_dtype
@each_kind
@pytest.mark.parametrize("has_bias", [False, True], ids=["plain", "bias"])
@pytest.mark.parametrize(
    ("num_inputs", "num_outputs"), [(64, 64), (176, 32), (33, 7), (1, 65), (1536, 576), (2817, 130)]
)
def test_a_product_is_that_of_the_weight(
    dtype: torch.dtype, bits: Bits | None, has_bias: bool, num_inputs: int, num_outputs: int
) -> None:
    weight = weight_of(num_outputs, num_inputs, dtype)
    bias = random(num_outputs, seed=2).to(dtype) if has_bias else None
    rows = random(3, 5, num_inputs).to(dtype)
    expected = exact(rows, weight, bits)
    if bias is not None:
        expected += bias.double()
    layer = KernelLinear(weight, bias, bits=bits)
    assert_close(layer(rows), expected, dtype)


@each_dtype
@each_kind
@pytest.mark.parametrize("num_threads", [1, 2])
@pytest.mark.parametrize(("num_inputs", "num_outputs"), [(64, 32), (33, 7), (1025, 300)])
def test_a_rows_bits_are_its_own(
    dtype: torch.dtype, bits: Bits | None, num_threads: int, num_inputs: int, num_outputs: int
) -> None:
    weight, bias = weight_of(num_outputs, num_inputs, dtype), random(num_outputs).to(dtype)
    layer = KernelLinear(weight, bias, bits=bits)
    rows = random(101, num_inputs, seed=3).to(dtype)
    others = random(101, num_outputs, seed=4).to(dtype)
    before = torch.get_num_threads()
    torch.set_num_threads(num_threads)
    try:
        whole, sums = layer(rows), added(layer, others, rows)
        for count in ROW_COUNTS:
            for start in (0, 1, 37):
                part = slice(start, start + count)
                assert torch.equal(layer(rows[part].clone()), whole[part]), (count, start)
                assert torch.equal(added(layer, others[part], rows[part]), sums[part])
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize("size", [1.0, 1e-20, 1e-36], ids=["ordinary", "small", "below normal"])
def test_a_rows_bits_are_its_own_where_numbers_are_far_apart(size: float) -> None:
    """One row is multiplied by other instructions than several are."""
    far = torch.exp(8 * random(300, 512, seed=7))
    weight = (size * far * random(300, 512, seed=8)).bfloat16()
    rows = (max(size, 1e-3) * far[:33] * random(33, 512, seed=9)).bfloat16()
    layer = KernelLinear(weight, None)
    one_by_one = torch.cat([layer(row) for row in rows.split(1)])
    assert one_by_one.any()
    assert torch.equal(one_by_one, layer(rows))


@each_dtype
def test_what_is_added_is_added_before_rounding(dtype: torch.dtype) -> None:
    weight = weight_of(130, 200, dtype)
    rows, others = random(9, 200).to(dtype), random(9, 130, seed=5).to(dtype)
    expected = others.double() + rows.double() @ weight.double().T
    assert_close(added(KernelLinear(weight, None), others, rows), expected, dtype)


@each_dtype
@each_kind
@pytest.mark.parametrize("width", [32, 50, 176])
def test_a_gated_product_is_silu_of_one_half_times_the_other(
    dtype: torch.dtype, bits: Bits | None, width: int
) -> None:
    weight = 4.0 * weight_of(2 * width, 96, dtype)
    bias = random(2 * width, seed=6).to(dtype)
    rows = random(11, 96).to(dtype)
    layer = KernelLinear(weight, bias, bits=bits, is_gated=True)
    both = exact(rows, weight, bits) + bias.double()
    gates, factors = both.split(width, dim=1)
    out = layer(rows)
    assert out.shape == (11, width)
    assert_close(out, nn.functional.silu(gates) * factors, dtype, times=8.0)


@each_dtype
def test_gates_far_from_zero(dtype: torch.dtype) -> None:
    gates = torch.tensor([-math.inf, -3e38, -200.0, -88.5, -0.0, 0.0, 88.5, 3e38, math.nan])
    weight = torch.cat((torch.zeros(9), torch.ones(9))).to(dtype).unsqueeze(1)
    layer = KernelLinear(weight, torch.cat((gates, torch.zeros(9))).to(dtype), is_gated=True)
    out = layer(torch.ones(1, 1, dtype=dtype))[0]
    # 88.5 is where e^x ends in float32.
    expected = torch.tensor([math.nan, 0.0, 0.0, 0.0, 0.0, 0.0, 88.5, 3e38, math.nan]).to(dtype)
    torch.testing.assert_close(out, expected, equal_nan=True, atol=1e-30, rtol=0)


@each_dtype
def test_wide_outputs_are_the_rounded_ones_as_float32(dtype: torch.dtype) -> None:
    layer = KernelLinear(weight_of(70, 48, dtype), None)
    rows, out = random(5, 48).to(dtype), torch.empty(5, 70)
    table = PassTable()
    table.values[NUM_ROWS] = 5
    table.put(buffer(0), rows)
    table.put(buffer(1), out)
    for step in layer.steps(table, buffer(0), buffer(1), Epilogue(is_wide=True)):
        step.run(1)
    assert torch.equal(out, layer(rows).float())


def test_a_layer_holds_no_rows_of_a_pass_that_is_over() -> None:
    """A model has hundreds of layers, and a prompt hundreds of rows."""
    layer = KernelLinear(weight_of(32, 64, torch.float32), None)
    rows = random(9, 64)
    held = [weakref.ref(tensor) for tensor in (rows, layer(rows))]
    del rows
    assert [ref() for ref in held] == [None] * len(held)


def test_no_rows_give_no_rows() -> None:
    layer = KernelLinear(weight_of(32, 64, torch.float32), None)
    assert layer(torch.empty(1, 0, 64)).shape == (1, 0, 32)


def test_what_is_not_a_number_stays_in_its_row() -> None:
    """Also where a bfloat16 row ends within a step: what follows it in memory is not read."""
    layer = KernelLinear(weight_of(16, 33, torch.bfloat16), None)
    rows = random(3, 33).bfloat16()
    alone = layer(rows[1:2].clone())
    rows[0], rows[2] = math.nan, math.nan
    out = layer(rows)
    assert torch.equal(out[1], alone[0])
    assert out[0].isnan().all()


PORTABLE = """
import torch
from models.cpu.kernels import tile
from models.cpu.product import KernelLinear
from tests.models.cpu import test_draw
drawn = test_draw.masked(2.0, 300), test_draw.SAMPLINGS, list(range(test_draw.NUM_ROWS))
assert (tile._HAS_PAIR_PRODUCT, tile._VECTORS_TOGETHER) == (False, 1)
torch.manual_seed(0)
for dtype in (torch.bfloat16, torch.float32):
    weight, rows = torch.randn(130, 77).to(dtype), torch.randn(9, 77).to(dtype)
    exact = rows.double() @ weight.double().T
    for bits, far in ((None, 2**-8), (8, 2**-5)):
        layer = KernelLinear(weight, None, bits=bits)
        out = layer(rows)
        torch.testing.assert_close(out.double(), exact, rtol=far, atol=8 * far)
        assert torch.equal(layer(rows[4:5].clone())[0], out[4])
assert test_draw.drawn(*drawn) == test_draw.by_torch(*drawn)
print("all held")
"""


def test_a_cpu_without_wide_vectors_has_the_same_layers(tmp_path: Path) -> None:
    settings = {"NUMBA_CPU_NAME": "haswell", "NUMBA_CPU_FEATURES": "+avx2,+fma,+avx,+f16c"}
    done = subprocess.run(
        [sys.executable, "-c", PORTABLE],
        env={**os.environ, **settings, "XDG_CACHE_HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.stdout.strip() == "all held", done.stderr[-2000:]


@pytest.mark.parametrize("num_threads", [1, 2, 3])
def test_a_programs_steps_follow_each_other(num_threads: int) -> None:
    """Each of 40 steps reads what all threads of the one before wrote; passes follow passes."""
    table = PassTable()
    layers = [KernelLinear(torch.eye(256).roll(1, 0), torch.ones(256)) for _ in range(40)]
    steps = [
        step
        for number, layer in enumerate(layers)
        for step in layer.steps(table, buffer(number % 2), buffer(1 - number % 2), Epilogue())
    ]
    program = Program(steps, num_threads)
    for seed in range(20):
        rows = random(1 + seed % 7, 256, seed=seed)
        other = torch.empty_like(rows)
        expected = rows.roll(40, 1)
        for _ in range(40):
            expected = expected + 1.0
        table.values[NUM_ROWS] = len(rows)
        table.put(buffer(0), rows)
        table.put(buffer(1), other)
        program.run(is_short=seed % 5 == 4)
        assert torch.equal(rows, expected)
