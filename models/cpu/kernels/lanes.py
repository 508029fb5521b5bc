"""Sixteen float32 numbers at once: the vector type that the CPU kernels are written in.

The kernels are Python that numba compiles. The compiler does not find the vectors in them by
itself, so they are spelled out. Each function here is one or a few LLVM instructions on a vector of
`NUM_LANES` numbers. LLVM maps it to the CPU's registers: one of AVX-512, two of AVX2, four of NEON.
No instruction may be reordered or fused unless a function says so. A number's bits depend on the
computation, never on its place in a vector or loop.

Addresses are plain ints. `like` stands for the type that numbers have in memory, `FLOAT32` or
`BFLOAT16`. It is known when a kernel is compiled. Nothing is checked; callers do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.extending import models, register_model

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
    instruction,
    is_float32,
    pointer,
    spread,
    typed,
    vector_call,
)

FLOAT32 = np.float32(0)
BFLOAT16 = np.uint16(0)  # numba has no such type: the bits, which are the upper half of a float32

_HALVES = ir.VectorType(I16, NUM_LANES)

Lanes = Any  # a vector, in the signatures of kernels
_Build = Callable[..., ir.Value | None]


class _LanesType(types.Type):
    def __init__(self) -> None:
        super().__init__(name="Lanes")


LANES = _LanesType()


@register_model(_LanesType)
class _LanesModel(models.PrimitiveModel):
    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, FLOATS)


def in_lanes(value: float) -> ir.Constant:
    """Return the float32 in all lanes, known when the kernel is compiled."""
    return constant(FLOATS, float(np.float32(value)))


def _is_within(builder: Builder, first: ir.Value, stop: ir.Value) -> ir.Value:
    """Return true in lanes first, ..., stop - 1."""
    lanes = ir.Constant(INTS, list(range(NUM_LANES)))
    ends = [spread(builder, builder.trunc(end, I32), INTS) for end in (first, stop)]
    return builder.and_(
        builder.icmp_signed(">=", lanes, ends[0]), builder.icmp_signed("<", lanes, ends[1])
    )


def _widened(builder: Builder, halves: ir.Value) -> ir.Value:
    """Convert bfloat16 bits to float32."""
    bits = builder.shl(builder.zext(halves, INTS), constant(INTS, 16))
    return builder.bitcast(bits, FLOATS)


def _rounded_bits(builder: Builder, lanes: ir.Value) -> ir.Value:
    """Round to the nearest bfloat16, to even, with its bits in the upper half; NaN stays NaN."""
    bits = builder.bitcast(lanes, INTS)
    odd = builder.and_(builder.lshr(bits, constant(INTS, 16)), constant(INTS, 1))
    rounded = builder.add(builder.add(bits, constant(INTS, 0x7FFF)), odd)
    is_nan = builder.fcmp_unordered("uno", lanes, lanes)
    return builder.select(is_nan, constant(INTS, 0x7FC00000), rounded)


def read_lanes(builder: Builder, address: ir.Value, like: Any) -> ir.Value:
    """Emit what `load` does."""
    if is_float32(like):
        return builder.load(pointer(builder, address, FLOATS), align=4)
    return _widened(builder, builder.load(pointer(builder, address, _HALVES), align=2))


@instruction
def load(context: Any, address: Any, like: Any) -> Any:
    """Load sixteen numbers in a row."""

    def build(builder: Builder, address: ir.Value, _: ir.Value) -> ir.Value:
        return read_lanes(builder, address, like)

    return typed(build, LANES, types.int64, like)


@instruction
def load_first(context: Any, address: Any, like: Any, count: Any) -> Any:
    """Load the first `count` of sixteen numbers; the others are zeros and are not read."""

    def build(builder: Builder, address: ir.Value, _: ir.Value, count: ir.Value) -> ir.Value:
        kind, size, name = (FLOATS, 4, "v16f32") if is_float32(like) else (_HALVES, 2, "v16i16")
        wanted = _is_within(builder, ir.Constant(I64, 0), count)
        place, align = pointer(builder, address, kind), ir.Constant(I32, size)
        others = constant(kind, 0)
        found = call(builder, f"masked.load.{name}.p0", kind, place, align, wanted, others)
        return found if is_float32(like) else _widened(builder, found)

    return typed(build, LANES, types.int64, like, types.int64)


@instruction
def store(context: Any, address: Any, lanes: Any, like: Any) -> Any:
    """Write sixteen numbers, rounded to their type."""

    def build(builder: Builder, address: ir.Value, lanes: ir.Value, _: ir.Value) -> None:
        if is_float32(like):
            builder.store(lanes, pointer(builder, address, FLOATS), align=4)
            return
        bits = builder.lshr(_rounded_bits(builder, lanes), constant(INTS, 16))
        halves = builder.trunc(bits, _HALVES)
        builder.store(halves, pointer(builder, address, _HALVES), align=2)

    return typed(build, types.void, types.int64, LANES, like)


@instruction
def store_first(context: Any, address: Any, lanes: Any, like: Any, count: Any) -> Any:
    """Write the first `count` of sixteen numbers."""

    def build(
        builder: Builder, address: ir.Value, lanes: ir.Value, _: ir.Value, count: ir.Value
    ) -> None:
        kind, size, name = (FLOATS, 4, "v16f32") if is_float32(like) else (_HALVES, 2, "v16i16")
        if not is_float32(like):
            bits = builder.lshr(_rounded_bits(builder, lanes), constant(INTS, 16))
            lanes = builder.trunc(bits, _HALVES)
        wanted = _is_within(builder, ir.Constant(I64, 0), count)
        place, align = pointer(builder, address, kind), ir.Constant(I32, size)
        call(builder, f"masked.store.{name}.p0", ir.VoidType(), lanes, place, align, wanted)

    return typed(build, types.void, types.int64, LANES, like, types.int64)


@instruction
def rounded(context: Any, lanes: Any, like: Any) -> Any:
    """Return the numbers as they would be after a store and a load."""

    def build(builder: Builder, lanes: ir.Value, _: ir.Value) -> ir.Value:
        if is_float32(like):
            return lanes
        bits = builder.and_(_rounded_bits(builder, lanes), constant(INTS, -0x10000))
        return builder.bitcast(bits, FLOATS)

    return typed(build, LANES, LANES, like)


@instruction
def splat(context: Any, number: Any) -> Any:
    """Copy a number to all lanes."""
    return typed(lambda builder, x: spread(builder, x, FLOATS), LANES, types.float32)


@instruction
def fma(context: Any, a: Any, b: Any, c: Any) -> Any:
    """Return a * b + c, rounded once."""
    return typed(emit_fma, LANES, LANES, LANES, LANES)


@instruction
def add(context: Any, a: Any, b: Any) -> Any:
    """Return a + b."""
    return typed(lambda builder, a, b: builder.fadd(a, b), LANES, LANES, LANES)


@instruction
def sub(context: Any, a: Any, b: Any) -> Any:
    """Return a - b."""
    return typed(lambda builder, a, b: builder.fsub(a, b), LANES, LANES, LANES)


@instruction
def mul(context: Any, a: Any, b: Any) -> Any:
    """Return a * b."""
    return typed(lambda builder, a, b: builder.fmul(a, b), LANES, LANES, LANES)


@instruction
def div(context: Any, a: Any, b: Any) -> Any:
    """Return a / b."""
    return typed(lambda builder, a, b: builder.fdiv(a, b), LANES, LANES, LANES)


def _larger(builder: Builder, a: ir.Value, b: ir.Value) -> ir.Value:
    return builder.select(builder.fcmp_ordered(">", a, b), a, b)


@instruction
def maximum(context: Any, a: Any, b: Any) -> Any:
    """Return the larger of a and b, lane by lane; b if one is not a number."""
    return typed(_larger, LANES, LANES, LANES)


@instruction
def where_larger(context: Any, a: Any, b: Any, one: Any, other: Any) -> Any:
    """Return `one` in lanes where a > b, else `other`."""

    def build(builder: Builder, *values: ir.Value) -> ir.Value:
        a, b, one, other = values
        return builder.select(builder.fcmp_ordered(">", a, b), one, other)

    return typed(build, LANES, LANES, LANES, LANES, LANES)


def _reduced(builder: Builder, lanes: ir.Value, combine: _Build) -> ir.Value:
    """Combine the lanes in halves, always in the same order."""
    width = NUM_LANES // 2
    while width:
        turned = ir.Constant(INTS, [(i + width) % NUM_LANES for i in range(NUM_LANES)])
        lanes = combine(builder, lanes, builder.shuffle_vector(lanes, lanes, turned))
        width //= 2
    return builder.extract_element(lanes, ir.Constant(I32, 0))


@instruction
def largest(context: Any, lanes: Any) -> Any:
    """Return the largest of the sixteen."""
    return typed(lambda builder, x: _reduced(builder, x, _larger), types.float32, LANES)


@instruction
def total(context: Any, lanes: Any) -> Any:
    """Return the sum of the sixteen."""
    return typed(
        lambda builder, x: _reduced(builder, x, lambda b, p, q: b.fadd(p, q)),
        types.float32,
        LANES,
    )


@instruction
def keep_lanes(context: Any, lanes: Any, first: Any, stop: Any) -> Any:
    """Put minus infinity in all lanes but first, ..., stop - 1."""

    def build(builder: Builder, lanes: ir.Value, first: ir.Value, stop: ir.Value) -> ir.Value:
        return builder.select(_is_within(builder, first, stop), lanes, in_lanes(-np.inf))

    return typed(build, LANES, LANES, types.int64, types.int64)


# exp(r) = 1 + r + r^2 * (polynomial of r) for |r| <= ln(2) / 2, highest power first: Cephes' expf.
_EXP_POLYNOMIAL: tuple[float, ...] = (
    *(1.9875691500e-4, 1.3981999507e-3, 8.3334519073e-3),
    *(4.1665795894e-2, 1.6666665459e-1, 5.0000001201e-1),
)
_EXP_LEAST, _EXP_MOST = -87.0, 88.0
_ROUNDER = 12582912.0  # 1.5 * 2^23: a sum with it has no fraction left
_ROUNDER_BITS = 0x4B400000
# ln(2) in two parts, of which the first has few bits, so that n * it is exact.
LN2_HIGH, LN2_LOW = 0.693359375, -2.12194440e-4


def _exp(builder: Builder, x: ir.Value) -> ir.Value:
    # Unordered: what is not a number stays so.
    is_seen = builder.fcmp_unordered(">", x, in_lanes(_EXP_LEAST))
    is_high = builder.fcmp_ordered(">", x, in_lanes(_EXP_MOST))
    x = builder.select(is_high, in_lanes(0), x)
    x = builder.select(is_seen, x, in_lanes(_EXP_LEAST))
    shifted = emit_fma(builder, x, in_lanes(np.log2(np.e)), in_lanes(_ROUNDER))
    whole = builder.fsub(shifted, in_lanes(_ROUNDER))
    r = emit_fma(builder, whole, in_lanes(-LN2_HIGH), x)
    r = emit_fma(builder, whole, in_lanes(-LN2_LOW), r)
    sum_ = in_lanes(_EXP_POLYNOMIAL[0])
    for factor in _EXP_POLYNOMIAL[1:]:
        sum_ = emit_fma(builder, sum_, r, in_lanes(factor))
    sum_ = builder.fadd(emit_fma(builder, sum_, builder.fmul(r, r), r), in_lanes(1))
    exponent = builder.sub(builder.bitcast(shifted, INTS), constant(INTS, _ROUNDER_BITS - 127))
    scale = builder.bitcast(builder.shl(exponent, constant(INTS, 23)), FLOATS)
    power = builder.select(is_high, in_lanes(np.inf), builder.fmul(sum_, scale))
    return builder.select(is_seen, power, in_lanes(0))


@instruction
def exp(context: Any, lanes: Any) -> Any:
    """Return e to the power of each, to about 1e-7 of it; 0 below -87, infinity above 88."""
    return typed(_exp, LANES, LANES)


@instruction
def tanh(context: Any, lanes: Any) -> Any:
    """Return the hyperbolic tangent of each, to about 1e-7."""

    def build(builder: Builder, x: ir.Value) -> ir.Value:
        e = _exp(builder, builder.fmul(vector_call(builder, "fabs", x), in_lanes(-2)))
        size = builder.fdiv(builder.fsub(in_lanes(1), e), builder.fadd(in_lanes(1), e))
        return vector_call(builder, "copysign", size, x)

    return typed(build, LANES, LANES)


@instruction
def copy_number(context: Any, target: Any, source: Any, like: Any) -> Any:
    """Copy one number as it is."""

    def build(builder: Builder, target: ir.Value, source: ir.Value, _: ir.Value) -> None:
        kind, size = (F32, 4) if is_float32(like) else (I16, 2)
        number = builder.load(pointer(builder, source, kind), align=size)
        builder.store(number, pointer(builder, target, kind), align=size)

    return typed(build, types.void, types.int64, types.int64, like)


@instruction
def num_bytes(context: Any, like: Any) -> Any:
    """Return the size of one number in memory."""
    size = 4 if is_float32(like) else 2
    return typed(lambda builder, _: ir.Constant(I64, size), types.int64, like)
