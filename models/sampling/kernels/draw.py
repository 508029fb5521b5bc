"""Temperature, cut, noise and argmax in two launches; the logits are read once.

A row is cut into chunks so that few rows keep a whole GPU busy. The first launch finds the best
token of each chunk, the second the best of those. The noise is that of `models.sampling.noise`.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.sampling.kernels.scores import load_scores, real_term
from models.sampling.kernels.terms import NUM_TERMS, STREAM, TEMPERATURE
from models.sampling.noise import GOLDEN, LARGEST_BELOW_ONE, MIX1, MIX2, UNIFORM_BITS
from models.torch_library import register

CHUNK, NUM_WARPS = 2048, 8
_NUM_TERMS = tl.constexpr(NUM_TERMS)
_STREAM, _TEMPERATURE = tl.constexpr(STREAM), tl.constexpr(TEMPERATURE)
_GOLDEN, _MIX1, _MIX2 = tl.constexpr(GOLDEN), tl.constexpr(MIX1), tl.constexpr(MIX2)
_UNUSED_BITS = tl.constexpr(64 - UNIFORM_BITS)
_UNIFORM_STEP = tl.constexpr(2.0**-UNIFORM_BITS)
_LARGEST_BELOW_ONE = tl.constexpr(LARGEST_BELOW_ONE)


@triton.jit
def gumbel(stream, token_ids):
    """Return the noise of some tokens of one stream, float32."""
    state = stream.to(tl.uint64, bitcast=True) + (token_ids + 1).to(tl.uint64) * _GOLDEN
    state = (state ^ (state >> 30)) * _MIX1
    state = (state ^ (state >> 27)) * _MIX2
    bits = (state ^ (state >> 31)) >> _UNUSED_BITS
    tail = tl.minimum((bits.to(tl.float32) + 0.5) * _UNIFORM_STEP, _LARGEST_BELOW_ONE)
    # log(1 - tail) by the logarithm of the rounded difference, and what rounding left out.
    below = 1.0 - tail
    is_lost = below == 1.0
    taken = tl.where(is_lost, 1.0, 1.0 - below)
    log1p = tl.where(is_lost, -tail, tl.log(below) * tl.div_rn(tail, taken))
    return -tl.log(-log1p)


@triton.jit
def chunk_kernel(
    logits,
    terms,
    cuts,
    best_scores,
    best_ids,
    vocab_size,
    num_chunks,
    CHUNK: tl.constexpr,
):
    index = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    ids = chunk * CHUNK + tl.arange(0, CHUNK)
    first_term = index * _NUM_TERMS
    temperature = real_term(terms, first_term + _TEMPERATURE).to(tl.float32)
    scores = load_scores(logits + index * vocab_size, ids, vocab_size, temperature)
    if temperature > 0.0:
        scores = tl.where(scores < tl.load(cuts + index), -float("inf"), scores)
        scores += gumbel(tl.load(terms + first_term + _STREAM), ids)
    # The lowest id where scores tie, as torch's argmax.
    best, place = tl.max(scores, axis=0, return_indices=True, return_indices_tie_break_left=True)
    slot = index * num_chunks + chunk
    tl.store(best_scores + slot, best)
    tl.store(best_ids + slot, chunk * CHUNK + place)


@triton.jit
def row_kernel(best_scores, best_ids, ids, num_chunks, BLOCK: tl.constexpr):
    index = tl.program_id(0).to(tl.int64)
    chunks = tl.arange(0, BLOCK)
    slots = index * num_chunks + chunks
    scores = tl.load(best_scores + slots, mask=chunks < num_chunks, other=-float("inf"))
    chunk = tl.argmax(scores, axis=0, tie_break_left=True)
    tl.store(ids + index, tl.load(best_ids + index * num_chunks + chunk).to(tl.int64))


def _chunk_best(logits: Tensor, terms: Tensor, cuts: Tensor) -> tuple[Tensor, Tensor]:
    logits = logits.contiguous()
    best_scores, best_ids = _empty_best(logits, terms, cuts)
    num_rows, num_chunks = best_ids.shape
    chunk_kernel[(num_rows, num_chunks)](
        *(logits, terms, cuts, best_scores, best_ids, logits.shape[1], num_chunks),
        CHUNK=CHUNK,
        num_warps=NUM_WARPS,
    )
    return best_scores, best_ids


def _empty_best(logits: Tensor, terms: Tensor, cuts: Tensor) -> tuple[Tensor, Tensor]:
    shape = len(logits), triton.cdiv(logits.shape[1], CHUNK)
    return logits.new_empty(shape), logits.new_empty(shape, dtype=torch.int32)


def _row_best(best_scores: Tensor, best_ids: Tensor) -> Tensor:
    ids = _empty_ids(best_scores, best_ids)
    num_rows, num_chunks = best_ids.shape
    row_kernel[(num_rows,)](
        *(best_scores, best_ids, ids, num_chunks),
        BLOCK=triton.next_power_of_2(num_chunks),
        num_warps=1,
    )
    return ids


def _empty_ids(best_scores: Tensor, best_ids: Tensor) -> Tensor:
    return best_ids.new_empty(len(best_ids), dtype=torch.int64)


_call_chunks = register(
    "chunk_best(Tensor logits, Tensor terms, Tensor cuts) -> (Tensor, Tensor)",
    _chunk_best,
    _empty_best,
)
_call_rows = register(
    "row_best(Tensor best_scores, Tensor best_ids) -> Tensor", _row_best, _empty_ids
)


def draw_rows(
    logits: Tensor,  # [R, V] float32
    terms: Tensor,  # [R, NUM_TERMS] from `pack_terms`
    cuts: Tensor,  # [R] float32: scores below are not drawn, where the temperature is not 0
) -> Tensor:  # [R] int64
    """argmax(logit / temperature + noise) of each row, the lowest id where values tie."""
    ids: Tensor = _call_rows(*_call_chunks(logits, terms, cuts))
    return ids
