"""Kernels for the row by row work of a decoder layer, between its matrix products.

Each number is rounded to its type wherever transformers rounds it, so that results agree. A row's
result is a function of that row alone. Threads take turns at runs of rows, heads one by one.

Shape letters: R rows, H query heads, K key heads, D head size, B tokens of a block.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from models.cpu.kernels.compiling import inline
from models.cpu.kernels.emit import NUM_LANES
from models.cpu.kernels.lanes import (
    BFLOAT16,
    FLOAT32,
    Lanes,
    add,
    copy_number,
    fma,
    load,
    load_first,
    mul,
    num_bytes,
    rounded,
    splat,
    store,
    store_first,
    total,
)
from models.cpu.kernels.parameters import (
    NUM_COMMON,
    NUM_ROWS,
    NUM_SHARED,
    PICKED,
    POSITIONS,
    SHARED_ROWS,
    SHARED_SLOTS,
    SLOTS,
    TAKEN,
    WORD,
    get,
    of_pass,
    rows_at,
)
from models.cpu.kernels.scalars import address_of, copy_bytes, read_float, read_int, take_next

_ZERO, _ONE = np.float32(0), np.float32(1)
# Rows a thread takes at once: of one head, whose neighbours share lines of a cache; to norm.
_RUN = 16
_NORM_RUN = 4

(
    NORM_WEIGHT,  # [width]
    NORM_WIDTH,
    NORM_EPSILON,  # float32
    NORM_SOURCE,  # field of rows [R, width]
    NORM_TARGET,  # field
) = range(NUM_COMMON, NUM_COMMON + 5)
NUM_NORM_PARAMETERS = NUM_COMMON + 5
(
    PICK_SOURCE,  # field of rows
    PICK_BYTES,  # size of a row
    PICK_TARGET,  # field of rows
) = range(NUM_COMMON, NUM_COMMON + 3)
NUM_PICK_PARAMETERS = NUM_COMMON + 3
(
    KEYS,  # [blocks, K, D, B] of the layer
    VALUES,  # [blocks, K, B, D]
    NUM_KEY_HEADS,
    HEAD_DIM,
    BLOCK_SIZE,
    KEY_SOURCE,  # field of rows
    KEY_OFFSET,  # place of the first key head in a row, in bytes
    VALUE_SOURCE,
    VALUE_OFFSET,
    ROW_STRIDE,  # stride of the sources, in numbers
    HEAD_STRIDE,
) = range(NUM_COMMON, NUM_COMMON + 11)
NUM_STORE_PARAMETERS = NUM_COMMON + 11
# Those of rotating follow those of storing.
(
    QUERIES,  # field of rows that begin with the first query head; strides as those of the keys
    NUM_HEADS,
    QUERY_NORM,  # [D]; 0: none
    KEY_NORM,  # [D]
    HEAD_EPSILON,  # float32
    COSINES,  # [positions, D]
    SINES,  # [positions, D], of the first half negative
) = range(NUM_STORE_PARAMETERS, NUM_STORE_PARAMETERS + 7)
NUM_ROTATE_PARAMETERS = NUM_STORE_PARAMETERS + 7


@inline
def _load(address: int, count: int, like: np.generic) -> Lanes:
    """Load the numbers that exist, up to sixteen, with zeros after them."""
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
    """Take the next rows that no thread has taken, first and stop; equal when there are none."""
    num_rows = of_pass(parameters, NUM_ROWS)
    first = _NORM_RUN * take_next(parameters + WORD * TAKEN)
    return min(first, num_rows), min(first + _NORM_RUN, num_rows)


@inline
def _take_heads(parameters: int) -> tuple[int, int, int]:
    """Take the next key head of some rows that no thread has taken, first and stop; see above."""
    num_rows, num_key_heads = of_pass(parameters, NUM_ROWS), get(parameters, NUM_KEY_HEADS)
    taken = take_next(parameters + WORD * TAKEN)
    first = _RUN * (taken // num_key_heads)
    return taken % num_key_heads, min(first, num_rows), min(first + _RUN, num_rows)


@inline
def _norm_rows(parameters: int, like: np.generic) -> None:
    width, epsilon = get(parameters, NORM_WIDTH), read_float(parameters + WORD * NORM_EPSILON)
    while True:
        first, stop = _take_rows(parameters)
        if first == stop:
            break
        for row in range(first, stop):
            offset = num_bytes(like) * row * width
            rows, out = rows_at(parameters, NORM_SOURCE), rows_at(parameters, NORM_TARGET)
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
    angles = size * head_dim * read_int(of_pass(parameters, POSITIONS) + WORD * row)
    head = first + size * row * get(parameters, ROW_STRIDE)
    for _ in range(num_heads):
        if norm != 0:
            _norm(head, head, norm, head_dim, epsilon, like)
        cosines = get(parameters, COSINES) + angles
        _rotate(head, cosines, get(parameters, SINES) + angles, head_dim, like)
        head += size * get(parameters, HEAD_STRIDE)


@inline
def _store_head(parameters: int, row: int, head: int, slot: int, like: np.generic) -> None:
    """Put the key and the value of one row and head into a slot."""
    size, head_dim = num_bytes(like), get(parameters, HEAD_DIM)
    block_size = get(parameters, BLOCK_SIZE)
    block, place = slot // block_size, slot % block_size
    base = size * (block * get(parameters, NUM_KEY_HEADS) + head) * head_dim * block_size
    source = size * (row * get(parameters, ROW_STRIDE) + head * get(parameters, HEAD_STRIDE))
    key = rows_at(parameters, KEY_SOURCE) + get(parameters, KEY_OFFSET) + source
    target = get(parameters, KEYS) + base
    for d in range(head_dim):
        copy_number(target + size * (d * block_size + place), key + size * d, like)
    value = rows_at(parameters, VALUE_SOURCE) + get(parameters, VALUE_OFFSET) + source
    target = get(parameters, VALUES) + base
    for d in range(0, head_dim, NUM_LANES):
        store(target + size * (place * head_dim + d), load(value + size * d, like), like)


@inline
def _store_shared(parameters: int, head: int, first: int, stop: int, like: np.generic) -> None:
    """Store the head of rows [first, stop) in their further slots, if they have any."""
    for number in range(of_pass(parameters, NUM_SHARED)):
        row = read_int(of_pass(parameters, SHARED_ROWS) + WORD * number)
        if first <= row < stop:
            slot = read_int(of_pass(parameters, SHARED_SLOTS) + WORD * number)
            _store_head(parameters, row, head, slot, like)


@inline
def _store_heads(parameters: int, like: np.generic) -> None:
    while True:
        head, first, stop = _take_heads(parameters)
        if first == stop:
            break
        for row in range(first, stop):
            slot = read_int(of_pass(parameters, SLOTS) + WORD * row)
            _store_head(parameters, row, head, slot, like)
        _store_shared(parameters, head, first, stop, like)


@inline
def _rotate_heads(parameters: int, like: np.generic) -> None:
    num_groups = get(parameters, NUM_HEADS) // get(parameters, NUM_KEY_HEADS)
    query_norm, key_norm = get(parameters, QUERY_NORM), get(parameters, KEY_NORM)
    head_bytes = num_bytes(like) * get(parameters, HEAD_STRIDE)
    while True:
        head, first, stop = _take_heads(parameters)
        if first == stop:
            break
        queries = rows_at(parameters, QUERIES) + num_groups * head * head_bytes
        keys = rows_at(parameters, KEY_SOURCE) + get(parameters, KEY_OFFSET) + head * head_bytes
        for row in range(first, stop):
            _prepare_heads(parameters, row, queries, num_groups, query_norm, like)
            _prepare_heads(parameters, row, keys, 1, key_norm, like)
            slot = read_int(of_pass(parameters, SLOTS) + WORD * row)
            _store_head(parameters, row, head, slot, like)
        _store_shared(parameters, head, first, stop, like)


def pick_rows(parameters: Any) -> None:
    """Copy rows of any type: to each row of the pass the one that it is a copy of."""
    own = address_of(parameters)
    row_bytes = get(own, PICK_BYTES)
    while True:
        first, stop = _take_rows(own)
        if first == stop:
            break
        for row in range(first, stop):
            source = read_int(of_pass(own, PICKED) + WORD * row)
            place = rows_at(own, PICK_SOURCE) + row_bytes * source
            copy_bytes(rows_at(own, PICK_TARGET) + row_bytes * row, place, row_bytes)


def norm_bfloat16(parameters: Any) -> None:
    """Apply the root mean square norm, bfloat16."""
    _norm_rows(address_of(parameters), BFLOAT16)


def norm_float32(parameters: Any) -> None:
    """Apply the root mean square norm, float32."""
    _norm_rows(address_of(parameters), FLOAT32)


def store_bfloat16(parameters: Any) -> None:
    """Store keys and values, bfloat16."""
    _store_heads(address_of(parameters), BFLOAT16)


def store_float32(parameters: Any) -> None:
    """Store keys and values, float32."""
    _store_heads(address_of(parameters), FLOAT32)


def rotate_bfloat16(parameters: Any) -> None:
    """Norm and rotate queries and keys, and store keys and values, bfloat16."""
    _rotate_heads(address_of(parameters), BFLOAT16)


def rotate_float32(parameters: Any) -> None:
    """Norm and rotate queries and keys, and store keys and values, float32."""
    _rotate_heads(address_of(parameters), FLOAT32)
