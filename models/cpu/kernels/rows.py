"""What a decoder layer does to each row by itself, between its matrix products.

Each number is rounded to its type wherever transformers rounds it, so that results agree. A row's
result is a function of that row alone. Threads take turns at runs of rows.

Shape letters: R rows, H query heads, K key heads, D head size, B tokens of a block, I the width of
the layer's MLP.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from models.cpu.kernels.compiling import inline
from models.cpu.kernels.lanes import (
    BFLOAT16,
    FLOAT32,
    NUM_LANES,
    Lanes,
    add,
    address_of,
    copy_number,
    div,
    exp,
    fma,
    load,
    load_first,
    mul,
    num_bytes,
    read_float,
    read_int,
    rounded,
    splat,
    store,
    store_first,
    sub,
    take_next,
    total,
)
from models.cpu.kernels.parameters import WORD, get

_ZERO, _ONE = np.float32(0), np.float32(1)
_RUN = 16  # rows a thread takes at once

# Parameters of all kernels here: how many rows were taken, 0 at first, and R.
TAKEN, NUM_ROWS = 0, 1
(
    NORM_WEIGHT,  # [width]
    NORM_WIDTH,
    NORM_EPSILON,  # float32
    NORM_ROWS,  # [R, width]
    NORM_OUT,  # [R, width]
) = range(2, 7)
NUM_NORM_PARAMETERS = 7
(
    GATE_WIDTH,  # I
    GATE_WIDTHS,  # int64, of the pieces
    GATE_NUM_PIECES,
    GATE_UP,  # [R, 2 I]: gates, then what they are for
    GATE_OUT,  # pieces [R, width], one after the other
) = range(2, 7)
NUM_GATE_PARAMETERS = 7
(
    KEYS,  # [blocks, K, D, B] of the layer
    VALUES,  # [blocks, K, B, D]
    NUM_KEY_HEADS,
    HEAD_DIM,
    BLOCK_SIZE,
    SLOTS,  # [R] int64, block * B + place in it
    KEY_SOURCE,  # the first row's first key head
    VALUE_SOURCE,
    ROW_STRIDE,  # of the sources, in numbers
    HEAD_STRIDE,
) = range(2, 12)
NUM_STORE_PARAMETERS = 12
# Those of rotating after those of storing.
(
    QUERIES,  # the first row's first query head; strides as those of the keys
    NUM_HEADS,
    QUERY_NORM,  # [D]; 0: none
    KEY_NORM,  # [D]
    HEAD_EPSILON,  # float32
    COSINES,  # [positions, D]
    SINES,  # [positions, D], of the first half negative
    POSITIONS,  # [R] int64
) = range(12, 20)
NUM_ROTATE_PARAMETERS = 20


@inline
def _load(address: int, count: int, like: np.generic) -> Lanes:
    """As many numbers as there are, up to sixteen; zeros after them."""
    if count >= NUM_LANES:
        return load(address, like)
    return load_first(address, like, count)


@inline
def _store(address: int, lanes: Lanes, count: int, like: np.generic) -> None:
    if count >= NUM_LANES:
        store(address, lanes, like)
    else:
        store_first(address, lanes, like, count)


@inline
def _norm(row: int, out: int, weight: int, width: int, epsilon: Any, like: np.generic) -> None:
    """out = weight * (row / root of its mean square)."""
    size = num_bytes(like)
    squares = splat(_ZERO)
    for i in range(0, width, NUM_LANES):
        some = _load(row + size * i, width - i, like)
        squares = fma(some, some, squares)
    mean = total(squares) / np.float32(width)
    factor = splat(_ONE / np.float32(math.sqrt(mean + epsilon)))
    for i in range(0, width, NUM_LANES):
        normed = rounded(mul(_load(row + size * i, width - i, like), factor), like)
        weighted = mul(normed, _load(weight + size * i, width - i, like))
        _store(out + size * i, weighted, width - i, like)


@inline
def _take_rows(parameters: int) -> tuple[int, int]:
    """The next rows that no thread has taken, first and stop; equal when there are no more."""
    num_rows = get(parameters, NUM_ROWS)
    first = _RUN * take_next(parameters + WORD * TAKEN)
    return min(first, num_rows), min(first + _RUN, num_rows)


@inline
def _norm_rows(parameters: int, like: np.generic) -> None:
    width, epsilon = get(parameters, NORM_WIDTH), read_float(parameters + WORD * NORM_EPSILON)
    while True:
        first, stop = _take_rows(parameters)
        if first == stop:
            break
        for row in range(first, stop):
            offset = num_bytes(like) * row * width
            rows, out = get(parameters, NORM_ROWS), get(parameters, NORM_OUT)
            weight = get(parameters, NORM_WEIGHT)
            _norm(rows + offset, out + offset, weight, width, epsilon, like)


@inline
def _rotate(head: int, cosines: int, sines: int, head_dim: int, like: np.generic) -> None:
    """head * cosines + (head with its halves swapped) * sines, in place."""
    size, half = num_bytes(like), head_dim // 2
    for i in range(0, half, NUM_LANES):
        low, high, count = size * i, size * (half + i), half - i
        left, right = _load(head + low, count, like), _load(head + high, count, like)
        straight = rounded(mul(left, _load(cosines + low, count, like)), like)
        turned = rounded(mul(right, _load(sines + low, count, like)), like)
        _store(head + low, add(straight, turned), count, like)
        straight = rounded(mul(right, _load(cosines + high, count, like)), like)
        turned = rounded(mul(left, _load(sines + high, count, like)), like)
        _store(head + high, add(straight, turned), count, like)


@inline
def _prepare_heads(
    parameters: int, row: int, first: int, num_heads: int, norm: int, like: np.generic
) -> None:
    """Norm, where there is one, and rotate one row's queries or keys in place."""
    head_dim, size = get(parameters, HEAD_DIM), num_bytes(like)
    epsilon = read_float(parameters + WORD * HEAD_EPSILON)
    angles = size * head_dim * read_int(get(parameters, POSITIONS) + WORD * row)
    head = first + size * row * get(parameters, ROW_STRIDE)
    for _ in range(num_heads):
        if norm != 0:
            _norm(head, head, norm, head_dim, epsilon, like)
        cosines = get(parameters, COSINES) + angles
        _rotate(head, cosines, get(parameters, SINES) + angles, head_dim, like)
        head += size * get(parameters, HEAD_STRIDE)


@inline
def _store_head(parameters: int, row: int, head: int, like: np.generic) -> None:
    """Put the key and the value of one row and head into their slot."""
    size, head_dim = num_bytes(like), get(parameters, HEAD_DIM)
    block_size = get(parameters, BLOCK_SIZE)
    slot = read_int(get(parameters, SLOTS) + WORD * row)
    block, place = slot // block_size, slot % block_size
    source = size * (row * get(parameters, ROW_STRIDE) + head * get(parameters, HEAD_STRIDE))
    base = size * (block * get(parameters, NUM_KEY_HEADS) + head) * head_dim * block_size
    key, target = get(parameters, KEY_SOURCE) + source, get(parameters, KEYS) + base
    for d in range(head_dim):
        copy_number(target + size * (d * block_size + place), key + size * d, like)
    value, target = get(parameters, VALUE_SOURCE) + source, get(parameters, VALUES) + base
    for d in range(0, head_dim, NUM_LANES):
        store(target + size * (place * head_dim + d), load(value + size * d, like), like)


@inline
def _store_run(parameters: int, first: int, stop: int, like: np.generic) -> None:
    """Rows within heads: rows of one session write to the same lines of a cache."""
    for head in range(get(parameters, NUM_KEY_HEADS)):
        for row in range(first, stop):
            _store_head(parameters, row, head, like)


@inline
def _store_rows(parameters: int, like: np.generic) -> None:
    while True:
        first, stop = _take_rows(parameters)
        if first == stop:
            break
        _store_run(parameters, first, stop, like)


@inline
def _rotate_rows(parameters: int, like: np.generic) -> None:
    num_heads, num_key_heads = get(parameters, NUM_HEADS), get(parameters, NUM_KEY_HEADS)
    query_norm, key_norm = get(parameters, QUERY_NORM), get(parameters, KEY_NORM)
    while True:
        first, stop = _take_rows(parameters)
        if first == stop:
            break
        for row in range(first, stop):
            queries, keys = get(parameters, QUERIES), get(parameters, KEY_SOURCE)
            _prepare_heads(parameters, row, queries, num_heads, query_norm, like)
            _prepare_heads(parameters, row, keys, num_key_heads, key_norm, like)
        _store_run(parameters, first, stop, like)


@inline
def _gate(gates: int, factors: int, out: int, width: int, like: np.generic) -> None:
    """out = SiLU of the gates, gate / (1 + e^-gate), times the factors."""
    size = num_bytes(like)
    for i in range(0, width, NUM_LANES):
        gate = _load(gates + size * i, width - i, like)
        below = add(splat(_ONE), exp(sub(splat(_ZERO), gate)))
        opened = rounded(div(gate, below), like)
        product = mul(opened, _load(factors + size * i, width - i, like))
        _store(out + size * i, product, width - i, like)


@inline
def _gate_row(parameters: int, row: int, like: np.generic) -> None:
    size, gate_width = num_bytes(like), get(parameters, GATE_WIDTH)
    gates = get(parameters, GATE_UP) + size * 2 * row * gate_width
    start = 0
    for piece in range(get(parameters, GATE_NUM_PIECES)):
        width = read_int(get(parameters, GATE_WIDTHS) + WORD * piece)
        place = start * get(parameters, NUM_ROWS) + row * width
        out = get(parameters, GATE_OUT) + size * place
        _gate(gates + size * start, gates + size * (gate_width + start), out, width, like)
        start += width


@inline
def _gate_rows(parameters: int, like: np.generic) -> None:
    while True:
        first, stop = _take_rows(parameters)
        if first == stop:
            break
        for row in range(first, stop):
            _gate_row(parameters, row, like)


def norm_bfloat16(parameters: Any) -> None:
    """Root mean square norm, bfloat16."""
    _norm_rows(address_of(parameters), BFLOAT16)


def norm_float32(parameters: Any) -> None:
    """Root mean square norm, float32."""
    _norm_rows(address_of(parameters), FLOAT32)


def store_bfloat16(parameters: Any) -> None:
    """Store keys and values, bfloat16."""
    _store_rows(address_of(parameters), BFLOAT16)


def store_float32(parameters: Any) -> None:
    """Store keys and values, float32."""
    _store_rows(address_of(parameters), FLOAT32)


def rotate_bfloat16(parameters: Any) -> None:
    """Norm and rotate queries and keys, and store keys and values, bfloat16."""
    _rotate_rows(address_of(parameters), BFLOAT16)


def rotate_float32(parameters: Any) -> None:
    """Norm and rotate queries and keys, and store keys and values, float32."""
    _rotate_rows(address_of(parameters), FLOAT32)


def gate_bfloat16(parameters: Any) -> None:
    """Gated SiLU, bfloat16."""
    _gate_rows(address_of(parameters), BFLOAT16)


def gate_float32(parameters: Any) -> None:
    """Gated SiLU, float32."""
    _gate_rows(address_of(parameters), FLOAT32)
