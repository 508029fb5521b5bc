"""Reads weights in groups back out of their panels, row by row: an embedding that gives logits too.

`packed.py` says how panels lie. A number is its code times the scale, plus the minimum, times the
factor of its row. Each of these steps is rounded to float32, as torch rounds it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from models.cpu.kernels.compiling import inline
from models.cpu.kernels.emit import (
    FLOATS,
    I32,
    I64,
    INTS,
    NUM_LANES,
    Builder,
    constant,
    instruction,
    plus,
    pointer,
    spread,
    typed,
)
from models.cpu.kernels.lanes import (
    BFLOAT16,
    FLOAT32,
    LANES,
    mul,
    num_bytes,
    splat,
    store,
    store_first,
)
from models.cpu.kernels.packed import (
    FACTORS_BYTES,
    GROUP,
    HALF,
    OFFSET,
    num_bits,
    read_halves,
)
from models.cpu.kernels.parameters import (
    NUM_COMMON,
    NUM_ROWS,
    PICKED,
    TAKEN,
    WORD,
    get,
    of_pass,
    rows_at,
)
from models.cpu.kernels.scalars import address_of, read_float, read_int, take_next

(
    UNPACK_PANELS,  # address
    UNPACK_PANEL_BYTES,
    UNPACK_FACTORS,  # [ids] float32; 0: all are one
    UNPACK_INPUTS,
    UNPACK_TARGET,  # field of rows [R, inputs]
) = range(NUM_COMMON, NUM_COMMON + 5)
NUM_UNPACK_PARAMETERS = NUM_COMMON + 5

_CODES_8, _CODES_4 = np.int8(0), np.uint8(0)  # as `packed.num_bits` tells them apart
_LINE = 4 * HALF  # bytes of the codes of four inputs of all columns, or twice four of 4 bits
_BYTES = ir.VectorType(ir.IntType(8), NUM_LANES)


@instruction
def _unpack(context: Any, block: Any, column: Any, half: Any, like: Any) -> Any:
    """Read the first or second sixteen inputs of a block's column."""
    bits = num_bits(like)
    num_factors = 2 if bits == 4 else 1

    def build(
        builder: Builder, block: ir.Value, column: ir.Value, half: ir.Value, _: ir.Value
    ) -> ir.Value:
        num_lines = NUM_LANES // 4 * bits // 8
        skipped = builder.mul(half, ir.Constant(I64, num_lines * _LINE))
        codes = plus(builder, builder.add(block, skipped), FACTORS_BYTES * num_factors)
        codes = builder.add(codes, builder.mul(column, ir.Constant(I64, 4)))
        words = ir.Constant(ir.VectorType(I32, NUM_LANES // 4), ir.Undefined)
        place = 0
        for line in range(num_lines):
            at = pointer(builder, plus(builder, codes, _LINE * line), I32)
            word = builder.load(at, align=4)
            parts = [word]
            if bits == 4:
                shifted = builder.lshr(word, ir.Constant(I32, 4))
                parts = [builder.and_(one, ir.Constant(I32, 0x0F0F0F0F)) for one in (word, shifted)]
            for part in parts:
                words = builder.insert_element(words, part, ir.Constant(I32, place))
                place += 1
        numbers = builder.zext(builder.bitcast(words, _BYTES), INTS)
        if bits == 8:
            numbers = builder.sub(numbers, constant(INTS, OFFSET))
        scales = builder.add(block, builder.mul(column, ir.Constant(I64, 2)))
        found = builder.fmul(builder.sitofp(numbers, FLOATS), _first(builder, scales))
        if bits == 8:
            return found
        return builder.fadd(found, _first(builder, plus(builder, scales, FACTORS_BYTES)))

    return typed(build, LANES, types.int64, types.int64, types.int64, like)


def _first(builder: Builder, address: ir.Value) -> ir.Value:
    """Return the float16 at an address in all lanes; what follows it is read and not used."""
    first = builder.extract_element(read_halves(builder, address), ir.Constant(I32, 0))
    return spread(builder, first, FLOATS)


@inline
def _unpack_rows(parameters: int, like: Any, codes: Any) -> None:
    """Do one thread's work: row by row."""
    num_rows, num_inputs = of_pass(parameters, NUM_ROWS), get(parameters, UNPACK_INPUTS)
    panel_bytes, factors = get(parameters, UNPACK_PANEL_BYTES), get(parameters, UNPACK_FACTORS)
    half_bytes = panel_bytes // 2
    block_bytes = half_bytes // ((num_inputs + GROUP - 1) // GROUP)
    size, target = num_bytes(like), rows_at(parameters, UNPACK_TARGET)
    row = take_next(parameters + WORD * TAKEN)
    while row < num_rows:
        source = read_int(of_pass(parameters, PICKED) + WORD * row)
        half, column = source // HALF, source % HALF
        block = get(parameters, UNPACK_PANELS) + half_bytes * half
        out = target + size * num_inputs * row
        for first in range(0, num_inputs, NUM_LANES):
            some = _unpack(
                block + block_bytes * (first // GROUP), column, first // NUM_LANES % 2, codes
            )
            if factors != 0:
                some = mul(some, splat(read_float(factors + 4 * source)))
            if num_inputs - first >= NUM_LANES:
                store(out + size * first, some, like)
            else:
                store_first(out + size * first, some, like, num_inputs - first)
        row = take_next(parameters + WORD * TAKEN)


def unpack_bfloat16_8(parameters: Any) -> None:
    """Read rows of 8-bit codes as bfloat16."""
    _unpack_rows(address_of(parameters), BFLOAT16, _CODES_8)


def unpack_bfloat16_4(parameters: Any) -> None:
    """Read rows of 4-bit codes as bfloat16."""
    _unpack_rows(address_of(parameters), BFLOAT16, _CODES_4)


def unpack_float32_8(parameters: Any) -> None:
    """Read rows of 8-bit codes as float32."""
    _unpack_rows(address_of(parameters), FLOAT32, _CODES_8)


def unpack_float32_4(parameters: Any) -> None:
    """Read rows of 4-bit codes as float32."""
    _unpack_rows(address_of(parameters), FLOAT32, _CODES_4)
