"""The lowest score of each row that min-p, top-k and top-p leave, in one launch.

Cuts are made by value and in integers, as in `models.sampling.truncation`. Scores in their order
are 32-bit integers, and counts and weights are added as integers. So neither ties nor the order of
adding move a cut. The wanted integer is found by cutting its range in four again and again. This
takes 16 passes at most over a row that the cache holds. (Histograms of digits take three passes.
They need atomic additions for weights, most of them to a few crowded bins.)

A program is a row.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.sampling.kernels.scores import load_scores, real_term
from models.sampling.kernels.terms import DEPTH, NUM_TERMS, TEMPERATURE, TOP_K, TOP_P
from models.sampling.truncation import WEIGHT_ONE
from models.torch_library import register

BLOCK, NUM_WARPS = 4096, 32
_NUM_TERMS = tl.constexpr(NUM_TERMS)
_TEMPERATURE, _DEPTH = tl.constexpr(TEMPERATURE), tl.constexpr(DEPTH)
_TOP_K, _TOP_P = tl.constexpr(TOP_K), tl.constexpr(TOP_P)
_WEIGHT_ONE = tl.constexpr(WEIGHT_ONE)


@triton.jit
def ordered_by(scores):
    """int64 in the order of float32 scores; both zeros are one."""
    bits = tl.where(scores == 0.0, 0.0, scores).to(tl.int32, bitcast=True)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.int64)


@triton.jit
def score_at(ordered):
    """Return the score that `ordered_by` encoded."""
    bits = ordered.to(tl.int32)
    return tl.where(bits < 0, bits ^ 0x7FFFFFFF, bits).to(tl.float32, bitcast=True)


@triton.jit
def best_score(row, vocab_size, temperature, BLOCK: tl.constexpr):
    best = tl.full((BLOCK,), -float("inf"), tl.float32)
    for first in range(0, vocab_size, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        best = tl.maximum(best, load_scores(row, columns, vocab_size, temperature))
    return tl.max(best, axis=0)


@triton.jit
def counts_from(
    row,
    vocab_size,
    temperature,
    floor,
    low,
    step,
    BLOCK: tl.constexpr,
):
    """Count the scores at or above low + step, low + 2 step and low + 3 step.

    Scores below `floor` are -inf.
    """
    first_count = tl.zeros((BLOCK,), tl.int32)
    second_count = tl.zeros((BLOCK,), tl.int32)
    third_count = tl.zeros((BLOCK,), tl.int32)
    for first in range(0, vocab_size, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        scores = load_scores(row, columns, vocab_size, temperature)
        ordered = ordered_by(tl.where(scores < floor, -float("inf"), scores))
        first_count += (ordered >= low + step).to(tl.int32)
        second_count += (ordered >= low + 2 * step).to(tl.int32)
        third_count += (ordered >= low + 3 * step).to(tl.int32)
    return (
        tl.sum(first_count, axis=0),
        tl.sum(second_count, axis=0),
        tl.sum(third_count, axis=0),
    )


@triton.jit
def weights_above(
    row,
    vocab_size,
    temperature,
    lowest,
    best,
    low,
    step,
    BLOCK: tl.constexpr,
):
    """Sum the weights (int64) at or above low + step, low + 2 step and low + 3 step."""
    first_sum = tl.zeros((BLOCK,), tl.int64)
    second_sum = tl.zeros((BLOCK,), tl.int64)
    third_sum = tl.zeros((BLOCK,), tl.int64)
    for first in range(0, vocab_size, BLOCK):
        columns = first + tl.arange(0, BLOCK)
        scores = load_scores(row, columns, vocab_size, temperature)
        ordered = ordered_by(scores)
        weights = (tl.exp(scores - best).to(tl.float64) * _WEIGHT_ONE).to(tl.int64)
        weights = tl.where(ordered < lowest, 0, weights)
        first_sum += tl.where(ordered >= low + step, weights, 0)
        second_sum += tl.where(ordered >= low + 2 * step, weights, 0)
        third_sum += tl.where(ordered >= low + 3 * step, weights, 0)
    return tl.sum(first_sum, axis=0), tl.sum(second_sum, axis=0), tl.sum(third_sum, axis=0)


@triton.jit
def kth_largest(
    row,
    vocab_size,
    temperature,
    floor,
    wanted,
    high,
    BLOCK: tl.constexpr,
):
    """Find the largest value with `wanted` scores at or above it. Nothing is above `high`."""
    low = ordered_by(tl.full((), -float("inf"), tl.float32))
    while low < high:
        step = (high - low + 3) // 4
        first, second, third = counts_from(
            row, vocab_size, temperature, floor, low, step, BLOCK=BLOCK
        )
        if third >= wanted:
            low += 3 * step
        elif second >= wanted:
            high = tl.minimum(high, low + 3 * step - 1)
            low += 2 * step
        elif first >= wanted:
            high = tl.minimum(high, low + 2 * step - 1)
            low += step
        else:
            high = low + step - 1
    return low


@triton.jit
def nucleus(
    row,
    vocab_size,
    temperature,
    top_p,
    lowest,
    best,
    BLOCK: tl.constexpr,
):
    """Find the smallest value with less than `top_p` of the weight from `lowest` on above it."""
    # Above the best there is nothing: the sum over all three parts is that of all scores.
    total, _, _ = weights_above(row, vocab_size, temperature, lowest, best, lowest, 0, BLOCK=BLOCK)
    target = top_p * total.to(tl.float64)
    low, high = lowest, ordered_by(best)
    while low < high:
        step = (high - low + 3) // 4
        first, second, third = weights_above(
            row, vocab_size, temperature, lowest, best, low, step, BLOCK=BLOCK
        )
        if first.to(tl.float64) < target:
            high = low + step - 1
        elif second.to(tl.float64) < target:
            high = tl.minimum(high, low + 2 * step - 1)
            low += step
        elif third.to(tl.float64) < target:
            high = tl.minimum(high, low + 3 * step - 1)
            low += 2 * step
        else:
            low += 3 * step
    return low


@triton.jit
def cut_kernel(logits, terms, cuts, vocab_size, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64)
    row = logits + index * vocab_size
    first_term = index * _NUM_TERMS
    temperature = real_term(terms, first_term + _TEMPERATURE).to(tl.float32)
    best = best_score(row, vocab_size, temperature, BLOCK=BLOCK)
    floor = best + real_term(terms, first_term + _DEPTH).to(tl.float32)
    lowest = ordered_by(tl.full((), -float("inf"), tl.float32))
    if best > -float("inf"):  # else no token is allowed, and nothing is to be cut
        lowest = tl.maximum(lowest, ordered_by(floor))
        top_k = tl.load(terms + first_term + _TOP_K)
        if top_k < vocab_size:
            kth = kth_largest(
                row, vocab_size, temperature, floor, top_k, ordered_by(best), BLOCK=BLOCK
            )
            lowest = tl.maximum(lowest, kth)
        top_p = real_term(terms, first_term + _TOP_P)
        if top_p < 1.0:
            lowest = nucleus(row, vocab_size, temperature, top_p, lowest, best, BLOCK=BLOCK)
    tl.store(cuts + index, score_at(lowest))


def _cuts(logits: Tensor, terms: Tensor) -> Tensor:
    logits = logits.contiguous()
    cuts = torch.empty(len(logits), dtype=torch.float32, device=logits.device)
    cut_kernel[(len(logits),)](
        logits, terms, cuts, logits.shape[1], BLOCK=BLOCK, num_warps=NUM_WARPS
    )
    return cuts


_call = register(
    "row_cuts(Tensor logits, Tensor terms) -> Tensor",
    _cuts,
    lambda logits, terms: logits.new_empty(len(logits)),
)


def row_cuts(
    logits: Tensor,  # [R, V] float32
    terms: Tensor,  # [R, NUM_TERMS] from `pack_terms`
) -> Tensor:  # [R] float32
    """Return the lowest score (logit over temperature) that each row's terms leave; -inf: all."""
    cuts: Tensor = _call(logits, terms)
    return cuts
