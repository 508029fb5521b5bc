"""silu(gate) * up of the joined product of both: one launch, read and written once."""

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from models.torch_library import register

_BLOCK = 1024


@triton.jit
def gate_kernel(gate_up, out, width, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = columns < width
    start = gate_up + row * 2 * width
    gate = tl.load(start + columns, mask=inside, other=0.0).to(tl.float32)
    up = tl.load(start + width + columns, mask=inside, other=0.0).to(tl.float32)
    result = gate / (1.0 + tl.exp(-gate)) * up
    tl.store(out + row * width + columns, result.to(out.dtype.element_ty), mask=inside)


def _gate(gate_up: Tensor) -> Tensor:
    gate_up = gate_up.contiguous()
    num_rows, width = len(gate_up), gate_up.shape[1] // 2
    out = gate_up.new_empty(num_rows, width)
    grid = (num_rows, triton.cdiv(width, _BLOCK))
    gate_kernel[grid](gate_up, out, width, BLOCK=_BLOCK, num_warps=4)
    return out


_call = register(
    "gate(Tensor gate_up) -> Tensor",
    _gate,
    lambda gate_up: gate_up.new_empty(len(gate_up), gate_up.shape[1] // 2),
)


def gate(gate_up: Tensor) -> Tensor:  # [R, 2 * F] -> [R, F]
    """silu of the first half of each row times its second half; computed in float32."""
    result: Tensor = _call(gate_up)
    return result
