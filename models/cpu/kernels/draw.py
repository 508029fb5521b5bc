"""Draws a token of each row: the best of its scores with their noise, in one pass over the row.

The noise is that of `models.sampling.noise`, by the same integers. Its logarithms are Cephes' logf,
to the last bit or two. So a draw differs from one by torch only where two tokens nearly tie.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from models.cpu.kernels.compiling import inline
from models.cpu.kernels.emit import (
    FLOATS,
    I64,
    INTS,
    NUM_LANES,
    Builder,
    constant,
    emit_fma,
    instruction,
    spread,
    typed,
)
from models.cpu.kernels.lanes import (
    FLOAT32,
    LANES,
    add,
    div,
    keep_lanes,
    load,
    load_first,
    maximum,
    splat,
    store,
)
from models.cpu.kernels.parameters import NUM_COMMON, TAKEN, WORD, get
from models.cpu.kernels.scalars import (
    address_of,
    read_float,
    read_int,
    stack_bytes,
    take_next,
    write_int,
)
from models.sampling.noise import GOLDEN, LARGEST_BELOW_ONE, MIX1, MIX2, UNIFORM_BITS

# Parameters.
(
    NUM_DRAWN,  # R
    NUM_SCORES,  # V
    SCORES,  # [R, V] float32, to be divided by the temperatures
    STREAMS,  # [R] int64
    TEMPERATURES,  # [R] float32; 0: the largest score itself, without noise
    IDS,  # [R] int64, written
) = range(NUM_COMMON, NUM_COMMON + 6)
NUM_PARAMETERS = NUM_COMMON + 6

_LONGS = ir.VectorType(I64, NUM_LANES)
_VECTOR_BYTES = 4 * NUM_LANES
_PLACE_BYTES = 2 * _VECTOR_BYTES
# log(1 + f) = f - f^2 / 2 + f^3 * (polynomial of f) for sqrt(1/2) <= 1 + f < sqrt(2), highest power
# first: Cephes' logf.
_LOG_POLYNOMIAL: tuple[float, ...] = (
    *(7.0376836292e-2, -1.1514610310e-1, 1.1676998740e-1, -1.2420140846e-1, 1.4249322787e-1),
    *(-1.6668057665e-1, 2.0000714765e-1, -2.4999993993e-1, 3.3333331174e-1),
)
_ROOT_OF_HALF_BITS = 0x3F3504F3
# ln(2) in two parts, of which the first has few bits, so that an exponent times it is exact.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4


def _floats(value: float) -> ir.Constant:
    return constant(FLOATS, float(np.float32(value)))


def _signed(value: int) -> int:
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value


def _log(builder: Builder, x: ir.Value) -> ir.Value:
    """Emit the natural logarithm of positive, normal numbers."""
    bits = builder.bitcast(x, INTS)
    above = builder.sub(bits, constant(INTS, _ROOT_OF_HALF_BITS))
    exponent = builder.ashr(above, constant(INTS, 23))
    mantissa = builder.sub(bits, builder.shl(exponent, constant(INTS, 23)))
    f = builder.fsub(builder.bitcast(mantissa, FLOATS), _floats(1))
    power = builder.sitofp(exponent, FLOATS)
    square = builder.fmul(f, f)
    sum_ = _floats(_LOG_POLYNOMIAL[0])
    for factor in _LOG_POLYNOMIAL[1:]:
        sum_ = emit_fma(builder, sum_, f, _floats(factor))
    sum_ = builder.fmul(builder.fmul(sum_, square), f)
    sum_ = emit_fma(builder, power, _floats(_LN2_LOW), sum_)
    sum_ = emit_fma(builder, square, _floats(-0.5), sum_)
    return emit_fma(builder, power, _floats(_LN2_HIGH), builder.fadd(f, sum_))


def _mixed(builder: Builder, state: ir.Value) -> ir.Value:
    """Emit SplitMix64's output function."""
    for shift, factor in ((30, MIX1), (27, MIX2)):
        state = builder.xor(state, builder.lshr(state, constant(_LONGS, shift)))
        state = builder.mul(state, constant(_LONGS, _signed(factor)))
    return builder.xor(state, builder.lshr(state, constant(_LONGS, 31)))


def _gumbel(builder: Builder, stream: ir.Value, first: ir.Value) -> ir.Value:
    start = builder.add(stream, builder.mul(first, ir.Constant(I64, _signed(GOLDEN))))
    steps = ir.Constant(_LONGS, [_signed((lane + 1) * GOLDEN) for lane in range(NUM_LANES)])
    state = _mixed(builder, builder.add(spread(builder, start, _LONGS), steps))
    bits = builder.lshr(state, constant(_LONGS, 64 - UNIFORM_BITS))
    tail = builder.fadd(builder.sitofp(bits, FLOATS), _floats(0.5))
    tail = builder.fmul(tail, _floats(2.0**-UNIFORM_BITS))
    most = _floats(LARGEST_BELOW_ONE)
    tail = builder.select(builder.fcmp_ordered("<", tail, most), tail, most)
    # log(1 - tail) by the logarithm of the rounded difference, and what rounding left out.
    below = builder.fsub(_floats(1), tail)
    is_lost = builder.fcmp_ordered("==", below, _floats(1))
    taken = builder.select(is_lost, _floats(1), builder.fsub(_floats(1), below))
    log1p = builder.fmul(_log(builder, below), builder.fdiv(tail, taken))
    minus = builder.select(is_lost, tail, builder.fsub(_floats(-0.0), log1p))
    return builder.fsub(_floats(-0.0), _log(builder, minus))


@instruction
def gumbel(context: Any, stream: Any, first: Any) -> Any:
    """Return the noise of tokens first, first + 1, ... of one stream."""
    return typed(_gumbel, LANES, types.int64, types.int64)


@instruction
def where_larger(context: Any, a: Any, b: Any, one: Any, other: Any) -> Any:
    """Return `one` in lanes where a > b, else `other`."""

    def build(builder: Builder, *values: ir.Value) -> ir.Value:
        a, b, one, other = values
        return builder.select(builder.fcmp_ordered(">", a, b), one, other)

    return typed(build, LANES, LANES, LANES, LANES, LANES)


@inline
def _noisy(scores: Any, stream: int, first: int, temperature: np.float32) -> Any:
    if temperature > 0:
        scores = add(div(scores, splat(temperature)), gumbel(stream, first))
    return scores


@inline
def _drawn(row: int, num_scores: int, stream: int, temperature: np.float32) -> int:
    """Return the token with the largest score, the lowest where some tie."""
    best, found = splat(np.float32(-np.inf)), splat(np.float32(0))
    whole = num_scores - num_scores % NUM_LANES
    for first in range(0, whole, NUM_LANES):
        scores = _noisy(load(row + 4 * first, FLOAT32), stream, first, temperature)
        found = where_larger(scores, best, splat(np.float32(first // NUM_LANES)), found)
        best = maximum(scores, best)
    if whole < num_scores:
        rest = load_first(row + 4 * whole, FLOAT32, num_scores - whole)
        scores = keep_lanes(_noisy(rest, stream, whole, temperature), 0, num_scores - whole)
        found = where_larger(scores, best, splat(np.float32(whole // NUM_LANES)), found)
        best = maximum(scores, best)
    place = stack_bytes(_PLACE_BYTES)
    store(place, best, FLOAT32)
    store(place + _VECTOR_BYTES, found, FLOAT32)
    return _lowest_best(place)


@inline
def _lowest_best(place: int) -> int:
    """Return the token of the best lane: its vector's number times the lanes, and its lane."""
    top, token = read_float(place), NUM_LANES * int(read_float(place + _VECTOR_BYTES))
    for lane in range(1, NUM_LANES):
        score = read_float(place + 4 * lane)
        other = NUM_LANES * int(read_float(place + _VECTOR_BYTES + 4 * lane)) + lane
        if score > top or (score == top and other < token):
            top, token = score, other
    return token


def draw_rows(parameters: Any) -> None:
    """Draw a token of each row; threads take rows in turn."""
    own = address_of(parameters)
    num_rows, num_scores = get(own, NUM_DRAWN), get(own, NUM_SCORES)
    while True:
        row = take_next(own + WORD * TAKEN)
        if row >= num_rows:
            break
        stream = read_int(get(own, STREAMS) + WORD * row)
        temperature = read_float(get(own, TEMPERATURES) + 4 * row)
        scores = get(own, SCORES) + 4 * num_scores * row
        write_int(get(own, IDS) + WORD * row, _drawn(scores, num_scores, stream, temperature))
