"""The noise of draws on a CPU, sixteen tokens at a time: that of `models.sampling.noise`.

The integers are the same. The logarithms are Cephes' logf, to the last bit or two.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba import types

from models.cpu.kernels.emit import (
    FLOATS,
    I64,
    INTS,
    LONGS,
    NUM_LANES,
    Builder,
    constant,
    emit_fma,
    instruction,
    spread,
    typed,
)
from models.cpu.kernels.lanes import LANES, LN2_HIGH, LN2_LOW, in_lanes
from models.sampling.noise import GOLDEN, LARGEST_BELOW_ONE, MIX1, MIX2, UNIFORM_BITS, signed

# log(1 + f) = f - f^2 / 2 + f^3 * (polynomial of f) for sqrt(1/2) <= 1 + f < sqrt(2), highest power
# first: Cephes' logf.
_LOG_POLYNOMIAL: tuple[float, ...] = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
_ROOT_OF_HALF_BITS = 0x3F3504F3


def _log(builder: Builder, x: ir.Value) -> ir.Value:
    """Emit the natural logarithm of positive, normal numbers."""
    bits = builder.bitcast(x, INTS)
    above = builder.sub(bits, constant(INTS, _ROOT_OF_HALF_BITS))
    exponent = builder.ashr(above, constant(INTS, 23))
    mantissa = builder.sub(bits, builder.shl(exponent, constant(INTS, 23)))
    f = builder.fsub(builder.bitcast(mantissa, FLOATS), in_lanes(1))
    power = builder.sitofp(exponent, FLOATS)
    square = builder.fmul(f, f)
    sum_ = in_lanes(_LOG_POLYNOMIAL[0])
    for factor in _LOG_POLYNOMIAL[1:]:
        sum_ = emit_fma(builder, sum_, f, in_lanes(factor))
    sum_ = builder.fmul(builder.fmul(sum_, square), f)
    sum_ = emit_fma(builder, power, in_lanes(LN2_LOW), sum_)
    sum_ = emit_fma(builder, square, in_lanes(-0.5), sum_)
    return emit_fma(builder, power, in_lanes(LN2_HIGH), builder.fadd(f, sum_))


def _mixed(builder: Builder, state: ir.Value) -> ir.Value:
    """Emit SplitMix64's output function."""
    for shift, factor in ((30, MIX1), (27, MIX2)):
        state = builder.xor(state, builder.lshr(state, constant(LONGS, shift)))
        state = builder.mul(state, constant(LONGS, signed(factor)))
    return builder.xor(state, builder.lshr(state, constant(LONGS, 31)))


def _gumbel(builder: Builder, stream: ir.Value, first: ir.Value) -> ir.Value:
    start = builder.add(stream, builder.mul(first, ir.Constant(I64, signed(GOLDEN))))
    steps = ir.Constant(LONGS, [signed((lane + 1) * GOLDEN) for lane in range(NUM_LANES)])
    state = _mixed(builder, builder.add(spread(builder, start, LONGS), steps))
    bits = builder.lshr(state, constant(LONGS, 64 - UNIFORM_BITS))
    tail = builder.fadd(builder.sitofp(bits, FLOATS), in_lanes(0.5))
    tail = builder.fmul(tail, in_lanes(2.0**-UNIFORM_BITS))
    most = in_lanes(LARGEST_BELOW_ONE)
    tail = builder.select(builder.fcmp_ordered("<", tail, most), tail, most)
    # log(1 - tail) by the logarithm of the rounded difference, and what rounding left out.
    below = builder.fsub(in_lanes(1), tail)
    is_lost = builder.fcmp_ordered("==", below, in_lanes(1))
    taken = builder.select(is_lost, in_lanes(1), builder.fsub(in_lanes(1), below))
    log1p = builder.fmul(_log(builder, below), builder.fdiv(tail, taken))
    minus = builder.select(is_lost, tail, builder.fsub(in_lanes(-0.0), log1p))
    return builder.fsub(in_lanes(-0.0), _log(builder, minus))


@instruction
def gumbel(context: Any, stream: Any, first: Any) -> Any:
    """Return the noise of tokens first, first + 1, ... of one stream."""
    return typed(_gumbel, LANES, types.int64, types.int64)
