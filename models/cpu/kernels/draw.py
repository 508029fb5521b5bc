"""Draws a token of each row: the best of its scores with their noise, in one pass over the row.

Rows with top-k, top-p or min-p are drawn from their few likely tokens (`cut`). Logarithms and
powers may differ from torch's in their last bit. So a draw differs only where two tokens nearly
tie.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from models.cpu.kernels.compiling import inline
from models.cpu.kernels.cut import drawn_of_likely
from models.cpu.kernels.emit import NUM_LANES
from models.cpu.kernels.lanes import (
    FLOAT32,
    add,
    div,
    keep_lanes,
    load,
    load_first,
    maximum,
    splat,
    store,
    where_larger,
)
from models.cpu.kernels.noise import gumbel
from models.cpu.kernels.parameters import NUM_COMMON, TAKEN, THREADS_BEGUN, WORD, get
from models.cpu.kernels.scalars import (
    address_of,
    read_float,
    read_int,
    read_real,
    stack_bytes,
    take_next,
    write_int,
)
from models.sampling.kernels.terms import DEPTH, NUM_TERMS, STREAM, TEMPERATURE, TOP_K, TOP_P

# Parameters.
(
    NUM_DRAWN,  # R
    NUM_SCORES,  # V
    LOGITS,  # [R, V] float32
    TERMS,  # [R, NUM_TERMS] int64, from `pack_terms`
    KEYS,  # [threads, V] int64 that a thread may write
    IDS,  # [R] int64, written
) = range(NUM_COMMON, NUM_COMMON + 6)
NUM_PARAMETERS = NUM_COMMON + 6

_VECTOR_BYTES = 4 * NUM_LANES
_PLACE_BYTES = 2 * _VECTOR_BYTES


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
    keys = get(own, KEYS) + WORD * num_scores * take_next(own + WORD * THREADS_BEGUN)
    while True:
        index = take_next(own + WORD * TAKEN)
        if index >= num_rows:
            break
        row = get(own, LOGITS) + 4 * num_scores * index
        terms = get(own, TERMS) + WORD * NUM_TERMS * index
        stream = read_int(terms + WORD * STREAM)
        temperature = np.float32(read_real(terms + WORD * TEMPERATURE))
        depth = np.float32(read_real(terms + WORD * DEPTH))
        top_k, top_p = read_int(terms + WORD * TOP_K), read_real(terms + WORD * TOP_P)
        if temperature > 0 and (depth > -np.inf or top_k < num_scores or top_p < 1):
            limits = depth, top_k, top_p
            token = drawn_of_likely(row, num_scores, stream, temperature, limits, keys)
        else:
            token = _drawn(row, num_scores, stream, temperature)
        write_int(get(own, IDS) + WORD * index, token)
