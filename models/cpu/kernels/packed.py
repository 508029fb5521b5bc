"""Products of weights of 4 or 8 bits: rows are rounded to 8 bits too, and integers are multiplied.

`GROUP` inputs of a column share a scale, and with 4 bits a minimum. A row has one scale for each
group. The products of a group are summed as integers, in any order, without rounding. One chain of
fused multiply-adds joins the groups in the order of the inputs. So a row's bits are its own, and
the same on every CPU.

A panel is two halves of 32 columns, one after the other; a half has a block for each group.

The layout of blocks:

    codes   a block                                               a weight
    8 bits  32 scales, 8 x 32 columns of 4 inputs                 scale * (code - 128)
    4 bits  32 scales, 32 minima, 4 x 32 columns of 4 + 4 inputs  scale * code + minimum

Scales and minima are float16. The lower half of a byte of 4-bit codes is one input's. The upper
half is that of the input 4 further on. A packed row has a record for each group. Its 32 codes are
followed by four words, of which the last is not used. They are the scale, -128 times the sum of the
codes, and the scale times that sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from llvmlite import ir
from numba import types
from numba.core import cgutils

from models.cpu.kernels.compiling import inline
from models.cpu.kernels.emit import (
    F32,
    FLOATS,
    I16,
    I32,
    I64,
    INTS,
    NUM_LANES,
    Builder,
    call,
    constant,
    emit_fma,
    has_feature,
    instruction,
    past_end,
    plus,
    pointer,
    prefetch,
    spread,
    typed,
)
from models.cpu.kernels.lanes import BFLOAT16, FLOAT32, LANES, load, load_first, num_bytes
from models.cpu.kernels.parameters import NUM_COMMON, NUM_ROWS, TAKEN, WORD, get, of_pass, rows_at
from models.cpu.kernels.scalars import address_of, take_next

GROUP = 32  # inputs that share a scale
HALF = 32  # columns of half a panel
RECORD_BYTES = GROUP + 16
_LEVELS = 127
OFFSET = 128  # of 8-bit codes
_AHEAD_BYTES = 8192  # weights are asked for so long before they are used
_LINE = 64
_NUM_VECTORS = HALF // NUM_LANES
_HALF_BYTES = 4 * HALF  # of a row's float32 sums
FACTORS_BYTES = 2 * HALF  # of the scales, or of the minima, of a block

# Places in a record.
_SCALE, _START, _SHIFT = GROUP, GROUP + 4, GROUP + 8

_I8 = ir.IntType(8)
_BYTES = ir.VectorType(_I8, 4 * NUM_LANES)
_CODES = ir.VectorType(_I8, NUM_LANES)
_HALVES = ir.VectorType(I16, NUM_LANES)
_SOME_BYTES = ir.VectorType(_I8, 32)  # a register of AVX2
_SOME_PAIRS = ir.VectorType(I16, 16)
_SOME_INTS = ir.VectorType(I32, 8)

_HAS_DOT = has_feature("avx512vnni")
_HAS_SHORT_DOT = not _HAS_DOT and has_feature("avxvnni")
# AVX2 multiplies bytes in pairs, whose sums must fit 16 bits: 8-bit codes take their signs off.
_HAS_PAIRS = not (_HAS_DOT or _HAS_SHORT_DOT) and has_feature("avx2")

(
    PACK_SOURCE,  # field of rows [R, inputs]
    PACK_TARGET,  # field of packed rows
    PACK_INPUTS,
) = range(NUM_COMMON, NUM_COMMON + 3)
NUM_PACK_PARAMETERS = NUM_COMMON + 3


def is_packed(like: Any) -> bool:
    """Return whether such weights are those of this module: int8 or, for 4 bits, uint8."""
    return bool(like in (types.int8, types.uint8))


def num_bits(like: Any) -> int:
    """Return the bits of such a packed weight."""
    return 8 if like == types.int8 else 4


def block_bytes(bits: int) -> int:
    """Return the size of a block of codes of so many bits, 4 or 8, with its scales and minima."""
    return GROUP * HALF * bits // 8 + FACTORS_BYTES * (2 if bits == 4 else 1)


def row_bytes(num_inputs: int) -> int:
    """Return the size of a packed row."""
    return -(-num_inputs // GROUP) * RECORD_BYTES


def _halved(builder: Builder, function: Any, *vectors: ir.Value) -> ir.Value:
    """Apply a function of vectors of 8 words to both halves of vectors of 16."""
    parts = []
    for first in (0, 8):
        lanes = ir.Constant(_SOME_INTS, list(range(first, first + 8)))
        parts.append(function(*[builder.shuffle_vector(one, one, lanes) for one in vectors]))
    return builder.shuffle_vector(*parts, ir.Constant(INTS, list(range(NUM_LANES))))


def _asm(builder: Builder, code: str, kind: ir.VectorType, *values: ir.Value) -> ir.Value:
    where = "=v,0,v,v" if kind is INTS else "=x,0,x,x"
    return builder.asm(
        ir.FunctionType(kind, [kind] * 3), code, where, list(values), side_effect=False
    )


def _dot_pairs(
    builder: Builder, sums: ir.Value, weights: ir.Value, inputs: ir.Value, *, is_wide: bool
) -> ir.Value:
    """Add products of bytes with AVX2."""
    weights, inputs = (builder.bitcast(one, _SOME_BYTES) for one in (weights, inputs))
    if is_wide:
        signed = builder.xor(weights, ir.Constant(_SOME_BYTES, [-OFFSET] * 32))
        keep_least = ir.Constant(ir.IntType(1), 0)
        weights = call(builder, "abs.v32i8", _SOME_BYTES, signed, keep_least)
        inputs = call(builder, "x86.avx2.psign.b", _SOME_BYTES, inputs, signed)
    pairs = call(builder, "x86.avx2.pmadd.ub.sw", _SOME_PAIRS, weights, inputs)
    ones = ir.Constant(_SOME_PAIRS, [1] * 16)
    return builder.add(sums, call(builder, "x86.avx2.pmadd.wd", _SOME_INTS, pairs, ones))


def _dot_anywhere(
    builder: Builder, sums: ir.Value, weights: ir.Value, inputs: ir.Value
) -> ir.Value:
    """Add products of bytes one by one."""
    for shift in range(0, 32, 8):
        weight = builder.and_(builder.lshr(weights, constant(INTS, shift)), constant(INTS, 255))
        some = builder.ashr(builder.shl(inputs, constant(INTS, 24 - shift)), constant(INTS, 24))
        sums = builder.add(sums, builder.mul(weight, some))
    return sums


def _dot(
    builder: Builder, sums: ir.Value, weights: ir.Value, inputs: ir.Value, *, is_wide: bool
) -> ir.Value:
    """Add, in each lane, the products of four unsigned bytes and four signed ones."""
    if _HAS_DOT:
        return _asm(builder, "vpdpbusd $3, $2, $0", INTS, sums, weights, inputs)
    if _HAS_SHORT_DOT:
        code = "{vex} vpdpbusd $3, $2, $0"
        return _halved(
            builder, lambda *one: _asm(builder, code, _SOME_INTS, *one), sums, weights, inputs
        )
    if _HAS_PAIRS:
        return _halved(
            builder,
            lambda *one: _dot_pairs(builder, *one, is_wide=is_wide),
            sums,
            weights,
            inputs,
        )
    return _dot_anywhere(builder, sums, weights, inputs)


def read_halves(builder: Builder, address: ir.Value) -> ir.Value:
    """Read sixteen float16 numbers, all finite, as float32."""
    halves = builder.load(pointer(builder, address, _HALVES), align=2)
    if has_feature("f16c"):
        return builder.fpext(builder.bitcast(halves, ir.VectorType(ir.HalfType(), 16)), FLOATS)
    bits = builder.zext(halves, INTS)
    size = builder.shl(builder.and_(bits, constant(INTS, 0x7FFF)), constant(INTS, 13))
    # The exponent counts from another number, which a factor makes good for the smallest too.
    size = builder.fmul(builder.bitcast(size, FLOATS), constant(FLOATS, 2.0**112))
    sign = builder.shl(builder.and_(bits, constant(INTS, 0x8000)), constant(INTS, 16))
    return builder.bitcast(builder.or_(builder.bitcast(size, INTS), sign), FLOATS)


class Panel(NamedTuple):
    """A panel of `num_inputs`, a multiple of `GROUP`, at an address.

    `jump` is the way from its end to the panel that comes next.
    """

    address: ir.Value
    jump: ir.Value
    num_inputs: ir.Value
    bits: int  # of a code, 4 or 8


class _Tile(NamedTuple):
    """Half a panel, with the float32 sums of all rows in registers."""

    builder: Builder
    rows: Sequence[ir.Value]  # where each begins
    panel: Panel
    end: ir.Value  # of the whole panel
    sums: Sequence[Sequence[ir.Value]]

    @property
    def bits(self) -> int:
        """Bits of a code."""
        return self.panel.bits

    def clear(self) -> None:
        """Begin with zeros."""
        for each in (each for row in self.sums for each in row):
            self.builder.store(constant(FLOATS, 0.0), each)

    def add_group(self, block: ir.Value, group: ir.Value) -> None:
        """Add the products of one group."""
        builder = self.builder
        ahead = plus(builder, block, _AHEAD_BYTES)
        ahead = past_end(builder, ahead, self.end, self.panel.jump)
        for line in range(0, block_bytes(self.bits), _LINE):
            prefetch(builder, plus(builder, ahead, line))
        offset = builder.mul(group, ir.Constant(I64, RECORD_BYTES))
        records = [builder.add(row, offset) for row in self.rows]
        products = self._products(block, records)
        for record, of_row, integers in zip(records, self.sums, products, strict=True):
            scale = self._spread_float(record, _SCALE)
            shift = self._spread_float(record, _SHIFT) if self.bits == 4 else None
            for vector, (each, number) in enumerate(zip(of_row, integers, strict=True)):
                at = plus(builder, block, 2 * NUM_LANES * vector)
                factor = builder.fmul(read_halves(builder, at), scale)
                summed = emit_fma(
                    builder, builder.sitofp(number, FLOATS), factor, builder.load(each)
                )
                if shift is not None:
                    least = read_halves(builder, plus(builder, at, FACTORS_BYTES))
                    summed = emit_fma(builder, least, shift, summed)
                builder.store(summed, each)

    def _products(self, block: ir.Value, records: Sequence[ir.Value]) -> list[list[ir.Value]]:
        """Return the integer sums of each row and vector over a group."""
        builder = self.builder
        sums = [[self._start(record)] * _NUM_VECTORS for record in records]
        codes = plus(builder, block, FACTORS_BYTES * (2 if self.bits == 4 else 1))
        for quad in range(GROUP // 4):
            inputs = [
                spread(builder, self._load_int(plus(builder, record, 4 * quad)), INTS)
                for record in records
            ]
            for vector in range(_NUM_VECTORS):
                weights = self._weights(codes, quad, vector)
                for of_row, some in zip(sums, inputs, strict=True):
                    of_row[vector] = _dot(
                        builder, of_row[vector], weights, some, is_wide=self.bits == 8
                    )
        return sums

    def _start(self, record: ir.Value) -> ir.Value:
        if self.bits == 4 or _HAS_PAIRS:
            return constant(INTS, 0)
        word = self._load_int(plus(self.builder, record, _START))
        return spread(self.builder, word, INTS)

    def _weights(self, codes: ir.Value, quad: int, vector: int) -> ir.Value:
        """Return the codes of four inputs of sixteen columns, a byte each."""
        builder, is_packed = self.builder, self.bits == 4
        number = (quad // 2 if is_packed else quad) * _NUM_VECTORS + vector
        at = plus(builder, codes, 4 * NUM_LANES * number)
        words = builder.load(pointer(builder, at, INTS), align=4)
        if not is_packed:
            return words
        if quad % 2:
            words = builder.lshr(words, constant(INTS, 4))
        return builder.and_(words, constant(INTS, 0x0F0F0F0F))

    def _load_int(self, address: ir.Value) -> ir.Value:
        return self.builder.load(pointer(self.builder, address, I32), align=4)

    def _spread_float(self, record: ir.Value, place: int) -> ir.Value:
        at = pointer(self.builder, plus(self.builder, record, place), F32)
        return spread(self.builder, self.builder.load(at, align=4), FLOATS)

    def write(self, out: ir.Value, row_bytes: int) -> None:
        """Store the sums; rows of `out` are so far apart."""
        builder = self.builder
        for row, of_row in enumerate(self.sums):
            for vector, each in enumerate(of_row):
                at = plus(builder, out, row_bytes * row + 4 * NUM_LANES * vector)
                builder.store(builder.load(each), pointer(builder, at, FLOATS), align=4)


def emit_packed_tile(
    builder: Builder, out: ir.Value, rows: Sequence[ir.Value], panel: Panel
) -> None:
    """Emit the product of packed rows and a panel; see `multiply_tile`.

    Args:
        builder: of the kernel.
        out: address of float32 [rows, PANEL].
        rows: where each begins.
        panel: that they are multiplied by.
    """
    sums = [[cgutils.alloca_once(builder, FLOATS) for _ in range(_NUM_VECTORS)] for _ in rows]
    num_groups = builder.udiv(panel.num_inputs, ir.Constant(I64, GROUP))
    step = ir.Constant(I64, block_bytes(panel.bits))
    half_bytes = builder.mul(num_groups, step)
    end = builder.add(panel.address, builder.mul(half_bytes, ir.Constant(I64, 2)))
    tile = _Tile(builder, rows, panel, end, sums)
    with cgutils.for_range(builder, ir.Constant(I64, 2)) as half:
        tile.clear()
        blocks = builder.add(panel.address, builder.mul(half.index, half_bytes))
        with cgutils.for_range(builder, num_groups) as groups:
            block = builder.add(blocks, builder.mul(groups.index, step))
            tile.add_group(block, groups.index)
        place = builder.add(out, builder.mul(half.index, ir.Constant(I64, _HALF_BYTES)))
        tile.write(place, 2 * _HALF_BYTES)


_ROUNDER, _ROUNDER_BITS = 12582912.0, 0x4B400000  # as in `lanes.py`
_LEAST = 1e-36  # no reciprocal beyond float32's numbers


@instruction
def _pack_group(context: Any, target: Any, low: Any, high: Any) -> Any:
    """Write the record of a row's 32 numbers."""

    def build(builder: Builder, target: ir.Value, *some: ir.Value) -> None:
        # Of bits, so that what is not a number counts as the largest.
        sizes = [
            builder.and_(builder.bitcast(one, INTS), constant(INTS, 0x7FFFFFFF)) for one in some
        ]
        larger = builder.select(builder.icmp_signed(">", *sizes), *sizes)
        most = builder.bitcast(call(builder, "vector.reduce.smax.v16i32", I32, larger), F32)
        scale = builder.fdiv(most, ir.Constant(F32, _LEVELS))
        is_tiny = builder.fcmp_ordered("<", most, ir.Constant(F32, _LEAST))
        inverse = builder.fdiv(ir.Constant(F32, _LEVELS), most)
        inverse = spread(builder, builder.select(is_tiny, ir.Constant(F32, 0.0), inverse), FLOATS)
        total = None
        for number, one in enumerate(some):
            whole = emit_fma(builder, one, inverse, constant(FLOATS, _ROUNDER))
            codes = builder.sub(builder.bitcast(whole, INTS), constant(INTS, _ROUNDER_BITS))
            total = codes if total is None else builder.add(total, codes)
            at = pointer(builder, plus(builder, target, NUM_LANES * number), _CODES)
            builder.store(builder.trunc(codes, _CODES), at, align=1)
        sum_ = call(builder, "vector.reduce.add.v16i32", I32, total)
        words = {
            _SCALE: scale,
            _START: builder.mul(sum_, ir.Constant(I32, -OFFSET)),
            _SHIFT: builder.fmul(scale, builder.sitofp(sum_, F32)),
        }
        for place, word in words.items():
            at = pointer(builder, plus(builder, target, place), word.type)
            builder.store(word, at, align=4)

    return typed(build, types.void, types.int64, LANES, LANES)


@inline
def _pack_rows(parameters: int, like: Any) -> None:
    """Do one thread's work: row by row."""
    num_rows, num_inputs = of_pass(parameters, NUM_ROWS), get(parameters, PACK_INPUTS)
    size, target = num_bytes(like), rows_at(parameters, PACK_TARGET)
    record_bytes = (num_inputs + GROUP - 1) // GROUP * RECORD_BYTES
    row = take_next(parameters + WORD * TAKEN)
    while row < num_rows:
        source = rows_at(parameters, PACK_SOURCE) + row * size * num_inputs
        record = target + row * record_bytes
        for first in range(0, num_inputs, GROUP):
            place = source + size * first
            if num_inputs - first >= GROUP:
                low, high = load(place, like), load(place + size * NUM_LANES, like)
            else:
                low = load_first(place, like, num_inputs - first)
                high = load_first(place + size * NUM_LANES, like, num_inputs - first - NUM_LANES)
            _pack_group(record, low, high)
            record += RECORD_BYTES
        row = take_next(parameters + WORD * TAKEN)


def pack_bfloat16(parameters: Any) -> None:
    """Pack rows of bfloat16."""
    _pack_rows(address_of(parameters), BFLOAT16)


def pack_float32(parameters: Any) -> None:
    """Pack rows of float32."""
    _pack_rows(address_of(parameters), FLOAT32)
