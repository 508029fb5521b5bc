"""What stands between a layer's products: Triton's kernels give what torch's operations give."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from models.gpu.operands import Norm, Rotation, Slots
from models.gpu.operations import TORCH, LayerOperations, triton_operations

pytest.importorskip("triton", reason="Triton is not installed")

PLAIN, KERNELS = TORCH, triton_operations()
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
WIDTHS = [16, 40, 64, 1000, 2048]


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator).to(dtype)


def assert_near(got: Tensor, expected: Tensor) -> None:
    """As near as one rounding more or less brings them."""
    assert got.dtype == expected.dtype
    step = torch.finfo(got.dtype).eps
    torch.testing.assert_close(got.float(), expected.float(), rtol=4 * step, atol=8 * step)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_norms(width: int, dtype: torch.dtype) -> None:
    rows, update = random(5, width, dtype=dtype), random(5, width, dtype=dtype, seed=1)
    norm = Norm(random(width, dtype=dtype, seed=2), 1e-5)
    assert_near(KERNELS.norm(rows, norm), PLAIN.norm(rows, norm))
    (total, normed), (plain_total, plain_normed) = (
        operations.add_norm(update, rows, norm) for operations in (KERNELS, PLAIN)
    )
    assert_near(total, plain_total)
    assert_near(normed, plain_normed)


def test_a_rows_norm_does_not_depend_on_the_other_rows() -> None:
    rows, norm = 1e3 * random(64, 1000), Norm(random(1000, seed=2), 1e-6)
    alone = torch.cat([KERNELS.norm(row, norm) for row in rows.split(1)])
    assert torch.equal(KERNELS.norm(rows, norm), alone)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("width", WIDTHS)
def test_gates(width: int, dtype: torch.dtype) -> None:
    gate_up = 4 * random(5, 2 * width, dtype=dtype)
    assert_near(KERNELS.gate(gate_up), PLAIN.gate(gate_up.float()).to(dtype))


@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
@pytest.mark.parametrize("is_normed", [False, True])
@pytest.mark.parametrize(("num_heads", "num_key_heads", "head_dim"), [(4, 2, 16), (3, 1, 80)])
def test_heads_are_rotated_and_stored(
    num_heads: int, num_key_heads: int, head_dim: int, is_normed: bool, dtype: torch.dtype
) -> None:
    num_rows, num_slots, num_positions = 6, 40, 100
    mixed = random(num_rows, (num_heads + 2 * num_key_heads) * head_dim, dtype=dtype)
    angles = random(num_positions, head_dim, seed=1)
    rotation = Rotation(
        angles.cos().to(dtype), angles.sin().to(dtype), torch.tensor([0, 1, 2, 99, 50, 0])
    )
    weight = random(num_heads + num_key_heads, head_dim, dtype=dtype, seed=2)
    head_norm = Norm(weight, 1e-6) if is_normed else None
    row_slots = torch.tensor([7, 8, 9, 39, 0, 20])

    def placed(operations: LayerOperations, dtype: torch.dtype) -> list[Tensor]:
        shape = num_slots, num_key_heads, head_dim
        slots = Slots(torch.zeros(shape, dtype=dtype), torch.zeros(shape, dtype=dtype), row_slots)
        parts = mixed, rotation.cos, rotation.sin, weight
        rows, cos, sin, head_weight = (part.to(dtype) for part in parts)
        norm = None if head_norm is None else Norm(head_weight, 1e-6)
        turned = Rotation(cos, sin, rotation.positions)
        return [operations.place(rows, turned, norm, slots), slots.keys, slots.values]

    for got, expected in zip(placed(KERNELS, dtype), placed(PLAIN, torch.float32), strict=True):
        assert_near(got, expected.to(dtype))
