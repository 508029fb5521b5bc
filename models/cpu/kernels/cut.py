"""Draws from the tokens that min-p, top-k and top-p leave of a row.

Cuts are made by value, and weights are added as integers, as in `models.sampling.truncation`. The
tokens near the best one are gathered as keys: int64 numbers in the order of scores. Among equal
scores the lower id is first. A heap yields them from the best on, only as many as stay. If those
near the best are too few, more are gathered.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from models.cpu.kernels.compiling import inline
from models.cpu.kernels.emit import (
    F32,
    I32,
    I64,
    LONGS,
    NUM_LANES,
    Builder,
    call,
    constant,
    instruction,
    typed,
)
from models.cpu.kernels.lanes import (
    FLOAT32,
    LANES,
    div,
    exp,
    keep_lanes,
    largest,
    load,
    load_first,
    maximum,
    splat,
    sub,
    where_larger,
)
from models.cpu.kernels.noise import gumbel
from models.cpu.kernels.parameters import WORD
from models.cpu.kernels.scalars import read_float, read_int, write_int
from models.sampling.truncation import WEIGHT_ONE

Limits = tuple[np.float32, int, float]  # min-p's depth below the best score, top-k, top-p

_FIRST_DEPTH, _LAST_DEPTH = np.float32(8), np.float32(64)  # below the best, of what is gathered
_LOW = (1 << 32) - 1
_REALS = ir.VectorType(ir.DoubleType(), NUM_LANES)


def _turned(builder: Builder, bits: ir.Value) -> ir.Value:
    """Emit an int32 in the order of float32 scores from their bits, or the bits from that."""
    is_negative = builder.icmp_signed("<", bits, ir.Constant(I32, 0))
    return builder.select(is_negative, builder.xor(bits, ir.Constant(I32, 0x7FFFFFFF)), bits)


@instruction
def ordered_by(context: Any, score: Any) -> Any:
    """Return an int64 of 32 bits in the order of float32 scores."""

    def build(builder: Builder, score: ir.Value) -> ir.Value:
        return builder.sext(_turned(builder, builder.bitcast(score, I32)), I64)

    return typed(build, types.int64, types.float32)


@instruction
def score_of(context: Any, key: Any) -> Any:
    """Return the score that the upper half of a key has from `ordered_by`."""

    def build(builder: Builder, key: ir.Value) -> ir.Value:
        bits = builder.trunc(builder.ashr(key, ir.Constant(I64, 32)), I32)
        return builder.bitcast(_turned(builder, bits), F32)

    return typed(build, types.float32, types.int64)


@instruction
def weight_sum(context: Any, lanes: Any) -> Any:
    """Return the sum of the sixteen in fixed point, of `WEIGHT_ONE` each."""

    def build(builder: Builder, lanes: ir.Value) -> ir.Value:
        reals = builder.fmul(builder.fpext(lanes, _REALS), constant(_REALS, WEIGHT_ONE))
        return call(builder, "vector.reduce.add.v16i64", I64, builder.fptosi(reals, LONGS))

    return typed(build, types.int64, LANES)


@inline
def _scores(row: int, first: int, num_scores: int, temperature: np.float32) -> Any:
    """Load sixteen scores; -inf behind the last."""
    if first + NUM_LANES <= num_scores:
        return div(load(row + 4 * first, FLOAT32), splat(temperature))
    rest = load_first(row + 4 * first, FLOAT32, num_scores - first)
    return keep_lanes(div(rest, splat(temperature)), 0, num_scores - first)


@inline
def _best(row: int, num_scores: int, temperature: np.float32) -> np.float32:
    best = splat(np.float32(-np.inf))
    for first in range(0, num_scores, NUM_LANES):
        best = maximum(_scores(row, first, num_scores, temperature), best)
    return largest(best)


@inline
def _total(
    row: int, num_scores: int, temperature: np.float32, best: np.float32, floor: np.float32
) -> int:
    """Return the weight of all scores from `floor` on."""
    total = 0
    for first in range(0, num_scores, NUM_LANES):
        scores = _scores(row, first, num_scores, temperature)
        weights = exp(sub(scores, splat(best)))
        total += weight_sum(where_larger(splat(floor), scores, splat(np.float32(0)), weights))
    return total


@inline
def _weight(key: int, best: np.float32) -> int:
    return weight_sum(exp(splat(score_of(key) - best))) // NUM_LANES


@inline
def _gather(
    row: int, num_scores: int, temperature: np.float32, least: np.float32, keys: int
) -> int:
    """Write the keys of all scores from `least` on; return how many there are."""
    count = 0
    for first in range(0, num_scores, NUM_LANES):
        if largest(_scores(row, first, num_scores, temperature)) >= least:
            for token in range(first, min(first + NUM_LANES, num_scores)):
                score = read_float(row + 4 * token) / temperature
                if score >= least and score > -np.inf:
                    write_int(keys + WORD * count, (ordered_by(score) << 32) | (_LOW - token))
                    count += 1
    return count


@inline
def _sift(keys: int, place: int, count: int) -> None:
    """Let the key at a place of a heap sink to where it belongs."""
    key = read_int(keys + WORD * place)
    while 2 * place + 1 < count:
        child = 2 * place + 1
        if child + 1 < count and read_int(keys + WORD * (child + 1)) > read_int(
            keys + WORD * child
        ):
            child += 1
        if read_int(keys + WORD * child) <= key:
            break
        write_int(keys + WORD * place, read_int(keys + WORD * child))
        place = child
    write_int(keys + WORD * place, key)


@inline
def _take_best(keys: int, count: int) -> int:
    """Move the best of a heap of `count` keys behind it, and return it."""
    key, last = read_int(keys), read_int(keys + WORD * (count - 1))
    write_int(keys, last)
    write_int(keys + WORD * (count - 1), key)
    _sift(keys, 0, count - 1)
    return key


@inline
def _sort_staying(
    keys: int, count: int, best: np.float32, total: int, limits: Limits, is_all: bool
) -> int:
    """Move the keys that stay behind the others, the best one last; return how many they are.

    It returns -1 where all stay, and further ones might that were not gathered (`is_all`: there are
    none). `total` is the weight of all scores; 0: that of what top-k leaves.
    """
    _, top_k, top_p = limits
    for place in range(count // 2 - 1, -1, -1):
        _sift(keys, place, count)
    staying, sum_ = 0, 0
    last = np.float32(0)
    while staying < count:  # top-k, with those that tie with the last
        top = score_of(read_int(keys))
        if staying >= top_k and top != last:
            break
        if total > 0 and staying > 0 and top != last and sum_ >= top_p * total:
            return staying
        key = _take_best(keys, count - staying)
        sum_ += _weight(key, best)
        last = top
        staying += 1
    is_short = sum_ < top_p * total or (total == 0 and staying < top_k)
    if staying == count and is_short and not is_all:
        return -1
    if top_p >= 1 or total > 0:
        return staying
    total, sum_ = sum_, 0
    for number in range(staying):
        key = read_int(keys + WORD * (count - 1 - number))
        if number > 0 and score_of(key) != last and sum_ >= top_p * total:
            return number
        sum_ += _weight(key, best)
        last = score_of(key)
    return staying


@inline
def drawn_of_likely(
    row: int,
    num_scores: int,
    stream: int,
    temperature: np.float32,
    limits: Limits,
    keys: int,
) -> int:
    """Return the token with the largest score and noise of those that the limits leave."""
    depth, top_k, top_p = limits
    best = _best(row, num_scores, temperature)
    if best == -np.inf:
        return 0
    # Without min-p there is none, also where the best is infinite: their sum would be no number.
    floor = best + depth if depth > -np.inf else np.float32(-np.inf)
    is_sorted = top_k < num_scores or top_p < 1
    needs_total = top_k >= num_scores and top_p < 1
    total = _total(row, num_scores, temperature, best, floor) if needs_total else 0
    reach = _FIRST_DEPTH if is_sorted else np.float32(np.inf)
    while True:
        least = max(floor, best - reach) if reach <= _LAST_DEPTH else floor
        count = staying = _gather(row, num_scores, temperature, least, keys)
        if is_sorted:
            staying = _sort_staying(keys, count, best, total, limits, least <= floor)
        if staying >= 0:
            break
        reach *= np.float32(2)
    return _drawn_of(keys + WORD * (count - staying), staying, stream)


@inline
def _drawn_of(keys: int, count: int, stream: int) -> int:
    """Return the token with the largest score and noise, the lowest where some tie."""
    top, token = np.float32(-np.inf), 0
    for number in range(count):
        key = read_int(keys + WORD * number)
        other = _LOW - (key & _LOW)
        score = score_of(key) + largest(keep_lanes(gumbel(stream, other), 0, 1))
        if number == 0 or score > top or (score == top and other < token):
            top, token = score, other
    return token
