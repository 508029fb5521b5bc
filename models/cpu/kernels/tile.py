"""The inner loop of matrix products: a few rows times a panel of columns, sums in registers.

A panel is `PANEL` columns of a weight. Its layout lets one step of the loop read them in a row.
Every sum is one chain of additions in the order of the inputs. So its bits do not depend on the
rows that are computed together.

    rows      weights   panel                  a step
    bfloat16  bfloat16  [inputs / 2, PANEL, 2] two inputs: `vdpbf16ps` where the CPU has it, else
                                               two fused multiply-adds; an odd last one has a step
    float32   float32   [inputs, PANEL]        one input, a fused multiply-add
    packed    packed    see `packed.py`        a group, as integers
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from models.cpu.kernels.emit import (
    FLOATS,
    I16,
    I32,
    I64,
    INTS,
    NUM_LANES,
    Builder,
    constant,
    emit_fma,
    has_feature,
    instruction,
    is_float32,
    literal,
    past_end,
    plus,
    pointer,
    prefetch,
    spread,
    typed,
)
from models.cpu.kernels.packed import Panel, emit_packed_tile, is_packed, num_bits

PANEL = 64  # columns
MAX_ROWS = 6
_VECTOR_BYTES = 4 * NUM_LANES
_NUM_VECTORS = PANEL // NUM_LANES

AHEAD_BYTES = 4096  # weights are asked for so long before they are used


_HAS_PAIR_PRODUCT = has_feature("avx512bf16")
# The sums of a tile should fill the registers: AVX-512 has 32 of sixteen numbers each.
_VECTORS_TOGETHER = _NUM_VECTORS if has_feature("avx512f") else 1


def _fma(builder: Builder, sums: ir.Value, *words: ir.Value) -> ir.Value:
    inputs, weights = (builder.bitcast(word, FLOATS) for word in words)
    return emit_fma(builder, inputs, weights, sums)


def _multiply(
    builder: Builder, sums: ir.Value, inputs: ir.Value, weights: ir.Value, *, are_pairs: bool
) -> ir.Value:
    """Return sums + inputs * weights of vectors of 32-bit words: float32, or pairs of bfloat16."""
    if not are_pairs:
        return _fma(builder, sums, inputs, weights)
    if _HAS_PAIR_PRODUCT:
        kind = ir.FunctionType(FLOATS, [FLOATS, INTS, INTS])
        code = "vdpbf16ps $3, $2, $0"
        return builder.asm(kind, code, "=v,0,v,v", [sums, inputs, weights], side_effect=False)
    high, half = constant(INTS, -0x10000), constant(INTS, 16)
    sums = _fma(builder, sums, builder.shl(inputs, half), builder.shl(weights, half))
    return _fma(builder, sums, builder.and_(inputs, high), builder.and_(weights, high))


class _Tile(NamedTuple):
    """Some vectors of a panel, with the sums of all rows in registers."""

    builder: Builder
    rows: Sequence[ir.Value]  # where each begins
    panel: ir.Value
    end: ir.Value  # of the panel
    jump: ir.Value  # from there to the panel that comes next
    vectors: range
    is_wide: bool  # rows are float32

    def sums(self) -> list[list[ir.Value]]:
        """Return zeros for each row and vector. LLVM turns the memory into registers."""
        count = range(len(self.vectors))
        made = [[cgutils.alloca_once(self.builder, FLOATS) for _ in count] for _ in self.rows]
        for each in (each for row in made for each in row):
            self.builder.store(constant(FLOATS, 0.0), each)
        return made

    def step(self, sums: list[list[ir.Value]], index: ir.Value, *, is_half: bool = False) -> None:
        """Add the products of one step; `is_half`: one bfloat16 where others have two."""
        builder = self.builder
        base = builder.add(self.panel, builder.mul(index, ir.Constant(I64, 4 * PANEL)))
        ahead = past_end(builder, plus(builder, base, AHEAD_BYTES), self.end, self.jump)
        weights = []
        for vector in self.vectors:
            prefetch(builder, plus(builder, ahead, _VECTOR_BYTES * vector))
            at = plus(builder, base, _VECTOR_BYTES * vector)
            weights.append(builder.load(pointer(builder, at, INTS), align=4))
        offset = builder.mul(index, ir.Constant(I64, 4))
        for row, of_row in zip(self.rows, sums, strict=True):
            inputs = self._inputs(builder.add(row, offset), is_half)
            for each, weight in zip(of_row, weights, strict=True):
                before, are_pairs = builder.load(each), not self.is_wide
                summed = _multiply(builder, before, inputs, weight, are_pairs=are_pairs)
                builder.store(summed, each)

    def write(self, sums: list[list[ir.Value]], out: ir.Value) -> None:
        """Store the sums, float32 [rows, PANEL]."""
        for row, of_row in enumerate(sums):
            for vector, each in zip(self.vectors, of_row, strict=True):
                offset = _VECTOR_BYTES * (row * _NUM_VECTORS + vector)
                at = pointer(self.builder, plus(self.builder, out, offset), FLOATS)
                self.builder.store(self.builder.load(each), at, align=4)

    def _inputs(self, address: ir.Value, is_half: bool) -> ir.Value:
        builder = self.builder
        if self.is_wide or not is_half:
            word = builder.load(pointer(builder, address, I32), align=2)
        else:
            word = builder.zext(builder.load(pointer(builder, address, I16), align=2), I32)
        return spread(builder, word, INTS)


@instruction
def multiply_tile(  # noqa: PLR0913  (an instruction takes numbers one by one)
    context: Any,
    out: Any,
    rows: Any,
    row_bytes: Any,
    panel: Any,
    jump: Any,
    num_inputs: Any,
    num_rows: Any,
    like: Any,
    weights_like: Any,
) -> Any:
    """Write the product of rows and a panel, float32 [num_rows, PANEL], to `out`.

    Rows begin `row_bytes` apart. `jump` is the way from the panel's end to the one that comes next,
    which is asked for meanwhile. `num_rows` is a constant of the code, from 1 to `MAX_ROWS`.
    """
    count = literal(num_rows, "num_rows")
    is_wide = is_float32(like)
    takes = 1 if is_wide else 2

    def build(builder: Builder, *values: ir.Value) -> None:
        out, rows, row_bytes, panel, jump, num_inputs = values[:6]
        numbers = [ir.Constant(I64, row) for row in range(count)]
        starts = [builder.add(rows, builder.mul(row_bytes, number)) for number in numbers]
        if is_packed(weights_like):
            source = Panel(panel, jump, num_inputs, num_bits(weights_like))
            emit_packed_tile(builder, out, starts, source)
            return
        num_steps = builder.udiv(num_inputs, ir.Constant(I64, takes))
        rest = builder.urem(num_inputs, ir.Constant(I64, takes))
        num_bytes = builder.mul(builder.add(num_steps, rest), ir.Constant(I64, 4 * PANEL))
        end = builder.add(panel, num_bytes)
        for first in range(0, _NUM_VECTORS, _VECTORS_TOGETHER):
            vectors = range(first, first + _VECTORS_TOGETHER)
            tile = _Tile(builder, starts, panel, end, jump, vectors, is_wide)
            sums = tile.sums()
            with cgutils.for_range(builder, num_steps) as loop:
                tile.step(sums, loop.index)
            with builder.if_then(builder.icmp_unsigned("!=", rest, ir.Constant(I64, 0))):
                tile.step(sums, num_steps, is_half=True)
            tile.write(sums, out)

    return typed(build, types.void, *[types.int64] * 6, num_rows, like, weights_like)
