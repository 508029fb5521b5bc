"""Products whose rows do not depend on how many there are: one reduction order for each weight.

torch's products choose tiles, and the split of a sum, by the number of rows. A sum in another order
ends in another last bit. Here both follow from the weight's shape alone. Tiles are the same for one
row and for a thousand, with zeros for absent rows. The inputs of a sum are split into `num_splits`
parts. Each part is added from its first input to its last, and the parts in order. If rows are few,
each part has a program of its own, so that all of the GPU reads weights. If they are many, one
program adds the parts one after the other. The additions and their order are the same.

Tiles have 64 rows for every number of rows on purpose. A GPU may take other instructions for fewer,
whose sums may be rounded differently.

Weights may be integers of 8 bits with a scale for each output: half of what a pass reads. A tile of
them becomes numbers of the rows' type, which all hold it exactly. The scale is applied to the sum.
So the inputs are not rounded, and any GPU can.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor, nn

from models.torch_library import register

BLOCK_ROWS, BLOCK_OUTPUTS, BLOCK_INPUTS = 64, 64, 64
NUM_WARPS, NUM_STAGES = 4, 4
_FEW_ROWS = BLOCK_ROWS  # rows of one tile: parts are programs of their own
_BUSY_PROGRAMS = 128  # as many keep a large GPU busy; a constant, so that all GPUs add alike
_MAX_SPLITS = 8


def num_splits(num_outputs: int, num_inputs: int) -> int:
    """Parts into which a sum is split, by the shape of the weight alone."""
    splits = 1
    while (
        splits < _MAX_SPLITS
        and triton.cdiv(num_outputs, BLOCK_OUTPUTS) * splits < _BUSY_PROGRAMS
        and num_inputs >= 2 * splits * 4 * BLOCK_INPUTS
    ):
        splits *= 2
    return splits


@triton.jit
def part_of_sum(
    rows,
    weight,
    is_row,
    is_output,
    num_inputs,
    first,
    stop,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
):
    """Products of inputs `first` to `stop` of a tile that begins there, float32."""
    inputs = tl.arange(0, BLOCK_INPUTS)
    row_tiles = rows + tl.arange(0, BLOCK_ROWS)[:, None] * num_inputs + inputs[None, :]
    weight_tiles = weight + tl.arange(0, BLOCK_OUTPUTS)[None, :] * num_inputs + inputs[:, None]
    total = tl.zeros((BLOCK_ROWS, BLOCK_OUTPUTS), tl.float32)
    for begin in range(first, stop, BLOCK_INPUTS):
        is_input = inputs < stop - begin
        some = tl.load(row_tiles + begin, mask=is_row[:, None] & is_input[None, :], other=0)
        weights = tl.load(
            weight_tiles + begin, mask=is_output[None, :] & is_input[:, None], other=0
        )
        total = tl.dot(some, weights.to(some.dtype), total, input_precision="ieee")
    return total


@triton.jit
def product_kernel(
    rows,
    weight,
    scales,
    bias,
    out,
    parts,
    num_rows,
    num_outputs,
    num_inputs,
    part_inputs,
    num_splits,
    HAS_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    IS_PARTED: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_INPUTS: tl.constexpr,
):
    """Compute a tile of the product; if it is parted, one part of its sums."""
    first_row = tl.program_id(1) * BLOCK_ROWS
    first_output = tl.program_id(0) * BLOCK_OUTPUTS
    row = tl.arange(0, BLOCK_ROWS)
    output = tl.arange(0, BLOCK_OUTPUTS)
    is_row, is_output = row < num_rows - first_row, output < num_outputs - first_output
    is_inside = is_row[:, None] & is_output[None, :]
    place = row[:, None] * num_outputs + output[None, :]
    corner = first_row.to(tl.int64) * num_outputs + first_output
    rows += first_row.to(tl.int64) * num_inputs
    weight += first_output.to(tl.int64) * num_inputs
    if IS_PARTED:
        part = tl.program_id(2)
        first = part * part_inputs
        stop = tl.minimum(first + part_inputs, num_inputs)
        total = part_of_sum(
            *(rows, weight, is_row, is_output, num_inputs, first, stop),
            BLOCK_ROWS=BLOCK_ROWS,
            BLOCK_OUTPUTS=BLOCK_OUTPUTS,
            BLOCK_INPUTS=BLOCK_INPUTS,
        )
        own = parts + part.to(tl.int64) * num_rows * num_outputs + corner
        tl.store(own + place, total, mask=is_inside)
    else:
        total = tl.zeros((BLOCK_ROWS, BLOCK_OUTPUTS), tl.float32)
        for part in range(num_splits):
            first = part * part_inputs
            stop = tl.minimum(first + part_inputs, num_inputs)
            total += part_of_sum(
                *(rows, weight, is_row, is_output, num_inputs, first, stop),
                BLOCK_ROWS=BLOCK_ROWS,
                BLOCK_OUTPUTS=BLOCK_OUTPUTS,
                BLOCK_INPUTS=BLOCK_INPUTS,
            )
        if HAS_SCALES:
            factors = tl.load(scales + first_output + output, mask=is_output, other=0.0)
            total *= factors.to(tl.float32)[None, :]
        if HAS_BIAS:
            added = tl.load(bias + first_output + output, mask=is_output, other=0.0)
            total += added.to(tl.float32)[None, :]
        tl.store(out + corner + place, total.to(out.dtype.element_ty), mask=is_inside)


@triton.jit
def sum_kernel(
    parts,
    scales,
    bias,
    out,
    num_numbers,
    num_outputs,
    num_splits,
    HAS_SCALES: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Add the parts of each number in order, with its scale and its bias."""
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    is_inside = place < num_numbers
    total = tl.zeros((BLOCK,), tl.float32)
    for part in range(num_splits):
        total += tl.load(parts + part * num_numbers + place, mask=is_inside, other=0.0)
    output = place % num_outputs
    if HAS_SCALES:
        total *= tl.load(scales + output, mask=is_inside, other=0.0).to(tl.float32)
    if HAS_BIAS:
        total += tl.load(bias + output, mask=is_inside, other=0.0).to(tl.float32)
    tl.store(out + place, total.to(out.dtype.element_ty), mask=is_inside)


def _product(rows: Tensor, weight: Tensor, scales: Tensor | None, bias: Tensor | None) -> Tensor:
    rows = rows.contiguous()
    out = _empty_product(rows, weight, scales, bias)
    num_rows, (num_outputs, num_inputs) = len(rows), weight.shape
    if num_rows == 0:
        return out
    splits = num_splits(num_outputs, num_inputs)
    is_parted = splits > 1 and num_rows <= _FEW_ROWS
    parts = rows.new_empty((splits if is_parted else 0, num_rows, num_outputs), dtype=torch.float32)
    part_inputs = triton.cdiv(triton.cdiv(num_inputs, splits), BLOCK_INPUTS) * BLOCK_INPUTS
    grid = (
        triton.cdiv(num_outputs, BLOCK_OUTPUTS),
        triton.cdiv(num_rows, BLOCK_ROWS),
        splits if is_parted else 1,
    )
    # Some address, which is not read, for what there is not.
    a_scale, a_bias = (out if each is None else each for each in (scales, bias))
    terms = {"HAS_SCALES": scales is not None, "HAS_BIAS": bias is not None}
    product_kernel[grid](
        *(rows, weight, a_scale, a_bias, out, parts),
        *(num_rows, num_outputs, num_inputs, part_inputs, splits),
        **terms,
        IS_PARTED=is_parted,
        BLOCK_ROWS=BLOCK_ROWS,
        BLOCK_OUTPUTS=BLOCK_OUTPUTS,
        BLOCK_INPUTS=BLOCK_INPUTS,
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
    )
    if is_parted:
        num_numbers = num_rows * num_outputs
        sum_kernel[(triton.cdiv(num_numbers, 1024),)](
            *(parts, a_scale, a_bias, out, num_numbers, num_outputs, splits),
            **terms,
            BLOCK=1024,
            num_warps=4,
        )
    return out


def _empty_product(
    rows: Tensor, weight: Tensor, scales: Tensor | None, bias: Tensor | None
) -> Tensor:
    return rows.new_empty(len(rows), len(weight))


_call = register(
    "product(Tensor rows, Tensor weight, Tensor? scales, Tensor? bias) -> Tensor",
    _product,
    _empty_product,
)


class InvariantLinear(nn.Module):
    """`nn.Linear` whose rows are functions of themselves alone, bit for bit.

    Args:
        weight: [outputs, inputs], as it is kept; int8 with scales.
        bias: [outputs] or None.
        scales: [outputs], what the weight's integers are to be multiplied by; None: they are none.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, scales: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.weight = nn.Parameter(weight.detach().contiguous(), requires_grad=False)
        self.scales = None if scales is None else nn.Parameter(scales, requires_grad=False)
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, rows: Tensor) -> Tensor:  # [R, inputs] -> [R, outputs]
        """Rows times the weight, plus the bias; summed in float32."""
        result: Tensor = _call(rows, self.weight, self.scales, self.bias)
        return result
