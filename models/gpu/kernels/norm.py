"""RMSNorm, alone or with the sum before it: one program for each row.

So the order in which a row's squares are added depends on its width alone, never on the other rows.
(torch's own mean may cut a row among blocks if there are few rows.)

Shape letters: R rows, F width.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.gpu.operands import Norm
from models.torch_library import register


@triton.jit
def normed(values, weight, mean_square, epsilon):
    """float32 values times their weight, over the root of their mean square."""
    return values * (1.0 / tl.sqrt_rn(mean_square + epsilon)) * weight


@triton.jit
def rms_norm_kernel(rows, weight, out, width, epsilon, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(rows + row + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    mean_square = tl.sum(values * values) / width
    result = normed(values, scale, mean_square, epsilon)
    tl.store(out + row + columns, result.to(out.dtype.element_ty), mask=inside)


@triton.jit
def add_rms_norm_kernel(
    update,
    residual,
    weight,
    total,
    out,
    width,
    epsilon,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64) * width
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(residual + row + columns, mask=inside, other=0.0).to(tl.float32)
    values += tl.load(update + row + columns, mask=inside, other=0.0).to(tl.float32)
    # The next layer adds to the rounded sum, so it is what is normed.
    rounded = values.to(total.dtype.element_ty)
    tl.store(total + row + columns, rounded, mask=inside)
    values = rounded.to(tl.float32)
    scale = tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
    mean_square = tl.sum(values * values) / width
    result = normed(values, scale, mean_square, epsilon)
    tl.store(out + row + columns, result.to(out.dtype.element_ty), mask=inside)


def _rms_norm(rows: Tensor, weight: Tensor, epsilon: float) -> Tensor:
    rows = rows.contiguous()
    out = torch.empty_like(rows)
    num_rows, width = rows.shape
    block = triton.next_power_of_2(width)
    rms_norm_kernel[(num_rows,)](
        rows, weight, out, width, epsilon, BLOCK=block, num_warps=warps_of(block)
    )
    return out


def _add_rms_norm(
    update: Tensor, residual: Tensor, weight: Tensor, epsilon: float
) -> tuple[Tensor, Tensor]:
    update, residual = update.contiguous(), residual.contiguous()
    total, out = torch.empty_like(residual), torch.empty_like(residual)
    num_rows, width = residual.shape
    block = triton.next_power_of_2(width)
    add_rms_norm_kernel[(num_rows,)](
        *(update, residual, weight, total, out, width, epsilon),
        BLOCK=block,
        num_warps=warps_of(block),
    )
    return total, out


def warps_of(block: int) -> int:
    """Warps of a program that holds `block` numbers: some 16 to 64 of them a thread."""
    return min(16, max(1, block // 512))


_call_norm = register(
    "rms_norm(Tensor rows, Tensor weight, float epsilon) -> Tensor",
    _rms_norm,
    lambda rows, weight, epsilon: torch.empty_like(rows),
)
_call_add_norm = register(
    "add_rms_norm(Tensor update, Tensor residual, Tensor weight, float epsilon)"
    " -> (Tensor, Tensor)",
    _add_rms_norm,
    lambda update, residual, weight, epsilon: (
        torch.empty_like(residual),
        torch.empty_like(residual),
    ),
)


def rms_norm(rows: Tensor, norm: Norm) -> Tensor:  # [R, F] -> [R, F]
    """Divide each row by the root of its mean square, times a weight; computed in float32."""
    result: Tensor = _call_norm(rows, norm.weight, norm.epsilon)
    return result


def add_rms_norm(
    update: Tensor,  # [R, F]
    residual: Tensor,  # [R, F]
    norm: Norm,
) -> tuple[Tensor, Tensor]:  # both [R, F]
    """Return the sum of both, rounded to their type, and `rms_norm` of that."""
    total, out = _call_add_norm(update, residual, norm.weight, norm.epsilon)
    return total, out
