"""Rows to float8 with a scale for each, in one launch: a program reads a row once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.gpu.kernels.norm import warps_of
from models.torch_library import register


@triton.jit
def round_kernel(rows, rounded, scales, width, largest, least_scale, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, BLOCK)
    inside = columns < width
    values = tl.load(rows + row * width + columns, mask=inside, other=0.0).to(tl.float32)
    scale = tl.maximum(tl.div_rn(tl.max(tl.abs(values), axis=0), largest), least_scale)
    tl.store(scales + row, scale)
    values = tl.minimum(tl.maximum(tl.div_rn(values, scale), -largest), largest)
    tl.store(rounded + row * width + columns, values.to(rounded.dtype.element_ty), mask=inside)


def _round(rows: Tensor, largest: float, least_scale: float) -> tuple[Tensor, Tensor]:
    rows = rows.contiguous()
    rounded, scales = _empty(rows, largest, least_scale)
    num_rows, width = rows.shape
    block = triton.next_power_of_2(width)
    round_kernel[(num_rows,)](
        *(rows, rounded, scales, width, largest, least_scale),
        BLOCK=block,
        num_warps=warps_of(block),
    )
    return rounded, scales


def _empty(rows: Tensor, largest: float, least_scale: float) -> tuple[Tensor, Tensor]:
    rounded = torch.empty_like(rows, dtype=torch.float8_e4m3fn)
    return rounded, rows.new_empty(len(rows), 1, dtype=torch.float32)


_call = register(
    "round_rows(Tensor rows, float largest, float least_scale) -> (Tensor, Tensor)", _round, _empty
)


def round_rows(
    rows: Tensor,  # [R, F]
    largest: float,  # the largest float8
    least_scale: float,
) -> tuple[Tensor, Tensor]:  # [R, F] float8, [R, 1] float32
    """Scale each row so that its largest number is `largest`; return the scales too."""
    rounded, scales = _call(rows, largest, least_scale)
    return rounded, scales
