"""Products that do not depend on the other rows: right, and the same for any number of rows."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

pytest.importorskip("triton", reason="Triton is not installed")

from models.gpu.kernels.product import BLOCK_ROWS, InvariantLinear, num_splits
from models.gpu.products import int8_linear
from models.layers.linear import MakeLinear
from models.layers.quantization import quantize_weight
from tests.harness.gpu.interpreted import add_in_order

# The interpreter has no products of bfloat16; on a GPU `tests/gpu` has them.
DTYPES = [torch.float32, torch.float16]
# Outputs and inputs: within a tile, over its border, with inputs that are split in 2, 4 and 8.
SHAPES = [(16, 40), (70, 130), (64, 512), (100, 1024), (65, 4096)]
each_kind = pytest.mark.parametrize("make", [InvariantLinear, int8_linear], ids=["whole", "int8"])


def random(*shape: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def test_how_often_a_sum_is_split_depends_on_the_weight() -> None:
    assert [num_splits(*shape) for shape in SHAPES] == [1, 1, 2, 4, 8]
    assert num_splits(128_256, 4096) == 1, "the head has programs enough"
    assert num_splits(4096, 4096) == 2
    assert num_splits(4096, 14336) == 2


@each_kind
@pytest.mark.parametrize("has_bias", [False, True])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(("num_outputs", "num_inputs"), SHAPES)
def test_products_are_right(
    num_outputs: int, num_inputs: int, dtype: torch.dtype, has_bias: bool, make: MakeLinear
) -> None:
    """Weights of 8 bits are those of a CPU."""
    weight = random(num_outputs, num_inputs, dtype=dtype)
    bias = random(num_outputs, dtype=dtype, seed=1) if has_bias else None
    linear = make(weight, bias)
    assert isinstance(linear, InvariantLinear)
    numbers = weight.double()
    if make is int8_linear:
        assert linear.weight.dtype == torch.int8
        integers, scales = quantize_weight(weight)
        numbers = integers.double() * scales.double()[:, None]
    step = torch.finfo(dtype).eps * num_inputs**0.5
    for num_rows in (1, 6, BLOCK_ROWS + 3):
        rows = random(num_rows, num_inputs, dtype=dtype, seed=num_rows)
        expected = rows.double() @ numbers.T
        if bias is not None:
            expected += bias.double()
        torch.testing.assert_close(linear(rows).double(), expected, rtol=step, atol=16 * step)


@each_kind
@pytest.mark.parametrize(("num_outputs", "num_inputs"), SHAPES)
def test_a_row_is_the_same_alone_and_among_others(
    num_outputs: int, num_inputs: int, make: MakeLinear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the parts of a sum are programs of their own, and where one program adds them."""
    add_in_order(monkeypatch)
    dtype = torch.float16
    linear = make(
        random(num_outputs, num_inputs, dtype=dtype), random(num_outputs, dtype=dtype, seed=1)
    )
    rows = random(2 * BLOCK_ROWS + 5, num_inputs, dtype=dtype, seed=2)
    whole = linear(rows)
    for first, stop in ((0, 1), (3, 9), (BLOCK_ROWS - 2, BLOCK_ROWS + 3), (60, 60 + BLOCK_ROWS)):
        assert torch.equal(linear(rows[first:stop]), whole[first:stop]), (first, stop)


def test_no_rows_are_no_product() -> None:
    linear = InvariantLinear(random(8, 16, dtype=torch.float32), None)
    assert linear(torch.empty(0, 16)).shape == (0, 8)
