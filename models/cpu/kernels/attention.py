"""Paged attention on a CPU: softmax over a session's keys, block by block, where they lie.

A task is some consecutive rows of one session with the query heads of one key head. It takes a span
of a few blocks of keys at a time. It computes the scores of all its vectors. It then updates each
vector's running maximum, sum and weighted values, as in arXiv 2205.14135. No array is ever as long
as the context. Meanwhile the next keys and values are fetched from memory. The CPU cannot guess
their addresses, because blocks lie anywhere.

A row's result depends on its own position and keys alone. Spans begin at the same positions for any
task, and blocks that a row does not see are left out. Keys that it does not see have a weight of
exactly zero. `mix` has the same result for any number of rows. So a row's bits do not depend on the
rows that are computed beside it.

Shape letters: H query heads, K key heads, G = H / K, D head size, B tokens of a block, S tokens of
a span, M vectors of a task, which are its rows times G.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from models.cpu.kernels.compiling import inline
from models.cpu.kernels.emit import NUM_LANES
from models.cpu.kernels.lanes import (
    BFLOAT16,
    FLOAT32,
    Lanes,
    add,
    div,
    exp,
    keep_lanes,
    largest,
    load,
    maximum,
    mul,
    num_bytes,
    splat,
    store,
    sub,
    tanh,
    total,
)
from models.cpu.kernels.mixing import FLOAT_BYTES, VECTOR_BYTES, Product, Vectors, mix, mix_into
from models.cpu.kernels.parameters import (
    BLOCK_IDS,
    NUM_COMMON,
    NUM_TASKS,
    TAKEN,
    TASKS,
    THREADS_BEGUN,
    WORD,
    get,
    of_pass,
    rows_at,
)
from models.cpu.kernels.scalars import address_of, read_float, read_int, take_next, write_float

# Parameters.
(
    KEYS,  # [blocks, K, D, B] of the layer
    VALUES,  # [blocks, K, B, D]
    NUM_HEADS,
    NUM_KEY_HEADS,
    HEAD_DIM,
    BLOCK_SIZE,
    SCALE,  # float32
    WINDOW,  # 0: none
    SOFTCAP,  # float32; 0: none
    SINKS,  # [H] float32; 0: none
    SCRATCH,  # address of the first thread's
    SCRATCH_BYTES,  # each thread's
    QUERY,  # field of rows that begin with the first head
    ROW_STRIDE,  # stride of the queries, in numbers
    HEAD_STRIDE,
    TARGET,  # field of [R, H, D]
) = range(NUM_COMMON, NUM_COMMON + 16)
NUM_PARAMETERS = NUM_COMMON + 16
TASK_FIELDS = 4  # first row, rows, position of the first, place in the block ids

_ZERO, _ONE, _NO_SCORE = np.float32(0), np.float32(1), np.float32(-np.inf)


# Tokens of a span, unless a block has more: enough for four vectors of scores at a time.
_SPAN = 4 * NUM_LANES


def scratch_bytes(num_vectors: int, head_dim: int, block_size: int) -> int:
    """Return a thread's scratch bytes for tasks of at most so many vectors; see `_places`."""
    span = max(_SPAN, block_size)
    return num_vectors * (FLOAT_BYTES * (2 * head_dim + span) + 2 * VECTOR_BYTES)


class _Task(NamedTuple):
    """Some consecutive rows of one session, with the query heads of one key head."""

    first_row: int  # its number in the pass
    num_rows: int
    key_head: int
    scratch: int  # where this thread keeps what `_places` lays out


class _Span(NamedTuple):
    """Some blocks of a session that follow each other."""

    blocks: int  # address of the number of the first
    num_blocks: int
    offset: int  # position of the task's first row, less that of the span's first key


class _Vector(NamedTuple):
    """Addresses of the state of one vector of a task."""

    sums: int  # [D] weighted values
    total: int  # [lanes] sums of weights
    top: int  # the largest score so far


@inline
def _places(scratch: int, num_vectors: int, head_dim: int) -> tuple[int, int, int, int]:
    """Return addresses after the queries: sums [M, D], totals, tops [M, lanes], scores [M, S]."""
    sums = scratch + FLOAT_BYTES * num_vectors * head_dim
    totals = sums + FLOAT_BYTES * num_vectors * head_dim
    tops = totals + VECTOR_BYTES * num_vectors
    return sums, totals, tops, tops + VECTOR_BYTES * num_vectors


@inline
def _start_task(parameters: int, task: _Task, like: np.generic) -> None:
    """Write the queries as float32, and empty sums."""
    head_dim = get(parameters, HEAD_DIM)
    num_groups = get(parameters, NUM_HEADS) // get(parameters, NUM_KEY_HEADS)
    num_vectors = task.num_rows * num_groups
    sums, totals, tops, _ = _places(task.scratch, num_vectors, head_dim)
    zero = splat(_ZERO)
    for vector in range(num_vectors):
        row = task.first_row + vector // num_groups
        head = task.key_head * num_groups + vector % num_groups
        place = row * get(parameters, ROW_STRIDE) + head * get(parameters, HEAD_STRIDE)
        query = rows_at(parameters, QUERY) + num_bytes(like) * place
        store(totals + VECTOR_BYTES * vector, zero, FLOAT32)
        write_float(tops + VECTOR_BYTES * vector, _NO_SCORE)
        for d in range(0, head_dim, NUM_LANES):
            offset = FLOAT_BYTES * (vector * head_dim + d)
            store(task.scratch + offset, load(query + num_bytes(like) * d, like), FLOAT32)
            store(sums + offset, zero, FLOAT32)


@inline
def _scaled(parameters: int, scores: Lanes) -> Lanes:
    scaled = mul(scores, splat(read_float(parameters + WORD * SCALE)))
    softcap = read_float(parameters + WORD * SOFTCAP)
    if softcap > _ZERO:
        scaled = mul(tanh(div(scaled, splat(softcap))), splat(softcap))
    return scaled


@inline
def _mask_scores(parameters: int, scores: int, num_keys: int, first: int, stop: int) -> Any:
    """Scale one vector's scores, of which it sees first, ..., stop - 1; return the largest."""
    top = splat(_NO_SCORE)
    for key in range(0, num_keys, NUM_LANES):
        some = _scaled(parameters, load(scores + FLOAT_BYTES * key, FLOAT32))
        if first > key or stop < key + NUM_LANES:
            some = keep_lanes(some, first - key, stop - key)
        store(scores + FLOAT_BYTES * key, some, FLOAT32)
        top = maximum(top, some)
    return largest(top)


@inline
def _raise_top(vector: _Vector, head_dim: int, factor: Lanes) -> None:
    """Rescale the sums that were added below a lower maximum."""
    store(vector.total, mul(load(vector.total, FLOAT32), factor), FLOAT32)
    for d in range(0, head_dim, NUM_LANES):
        place = vector.sums + FLOAT_BYTES * d
        store(place, mul(load(place, FLOAT32), factor), FLOAT32)


@inline
def _turn_to_weights(
    parameters: int, scores: int, vector: _Vector, span: _Span, position: int
) -> None:
    """Turn scores of a vector at `position` of the span to weights, by the largest so far."""
    num_keys, window = span.num_blocks * get(parameters, BLOCK_SIZE), get(parameters, WINDOW)
    earliest = position + 1 - window if window > 0 else 0
    largest_here = _mask_scores(parameters, scores, num_keys, earliest, position + 1)
    largest_yet = read_float(vector.top)
    if largest_here > largest_yet:
        factor = exp(splat(largest_yet - largest_here))
        _raise_top(vector, get(parameters, HEAD_DIM), factor)
        write_float(vector.top, largest_here)
        largest_yet = largest_here
    reference, added = splat(largest_yet), load(vector.total, FLOAT32)
    for key in range(0, num_keys, NUM_LANES):
        place = scores + FLOAT_BYTES * key
        weights = exp(sub(load(place, FLOAT32), reference))
        store(place, weights, FLOAT32)
        added = add(added, weights)
    store(vector.total, added, FLOAT32)


@inline
def _seen_by(parameters: int, task: _Task, offset: int, num_keys: int) -> tuple[int, int]:
    """Return the rows of a task that see any of so many keys, first and stop.

    Rows before the keys see none, and neither do those whose window begins after them.
    """
    window = get(parameters, WINDOW)
    stop = min(task.num_rows, num_keys - 1 + window - offset) if window > 0 else task.num_rows
    return max(0, -offset), stop


@inline
def _block_at(parameters: int, key_head: int, span: _Span, number: int, like: np.generic) -> int:
    """Return the bytes from the first keys, or values, to a head's in a block of the span."""
    block = read_int(span.blocks + WORD * number)
    size = num_bytes(like) * get(parameters, BLOCK_SIZE) * get(parameters, HEAD_DIM)
    return size * (block * get(parameters, NUM_KEY_HEADS) + key_head)


@inline
def _keys_at(parameters: int, key_head: int, span: _Span, key: int, like: np.generic) -> int:
    """Return the address of sixteen keys of the span; 0 after its last."""
    block_size = get(parameters, BLOCK_SIZE)
    number = key // block_size
    if number >= span.num_blocks:
        return 0
    block = _block_at(parameters, key_head, span, number, like)
    return get(parameters, KEYS) + block + num_bytes(like) * (key % block_size)


@inline
def _score(
    parameters: int, task: _Task, span: _Span, seen: tuple[int, int], like: np.generic
) -> None:
    """Compute the scores of the vectors from `seen` on, and prefetch their values meanwhile."""
    head_dim, block_size = get(parameters, HEAD_DIM), get(parameters, BLOCK_SIZE)
    num_groups = get(parameters, NUM_HEADS) // get(parameters, NUM_KEY_HEADS)
    scores = _places(task.scratch, task.num_rows * num_groups, head_dim)[3]
    first, num_vectors = seen
    queries = task.scratch + FLOAT_BYTES * first * head_dim
    num_keys, head = span.num_blocks * block_size, task.key_head
    ahead = get(parameters, VALUES) - get(parameters, KEYS)
    step = num_bytes(like) * block_size
    product = Product(head_dim, step, head_dim, num_keys, ahead)
    for key in range(0, num_keys, 4 * NUM_LANES):
        vectors = Vectors(
            _keys_at(parameters, head, span, key, like),
            _keys_at(parameters, head, span, key + NUM_LANES, like),
            _keys_at(parameters, head, span, key + 2 * NUM_LANES, like),
            _keys_at(parameters, head, span, key + 3 * NUM_LANES, like),
        )
        rows = (scores + FLOAT_BYTES * key, queries, num_vectors)
        mix(rows, vectors, product, min(4, (num_keys - key) // NUM_LANES), like)


@inline
def _weigh_values(
    parameters: int, task: _Task, span: _Span, skipped: int, like: np.generic
) -> None:
    """Add the weighted values of each block, whose weights begin with row `skipped`.

    Keys of the next span are prefetched meanwhile: its blocks are those after this one's.
    """
    head_dim, block_size = get(parameters, HEAD_DIM), get(parameters, BLOCK_SIZE)
    num_groups = get(parameters, NUM_HEADS) // get(parameters, NUM_KEY_HEADS)
    num_keys = span.num_blocks * block_size
    sums, _, _, scores = _places(task.scratch, task.num_rows * num_groups, head_dim)
    for number in range(span.num_blocks):
        offset = span.offset - number * block_size
        first, stop = _seen_by(parameters, task, offset, block_size)
        if first >= stop:
            continue
        block = _block_at(parameters, task.key_head, span, number, like)
        ahead = 0
        if offset + task.num_rows > num_keys:  # there is a block so much further on
            later = _block_at(parameters, task.key_head, span, number + span.num_blocks, like)
            ahead = get(parameters, KEYS) + later - get(parameters, VALUES) - block
        # Keys after the last row are not read: they may be anything.
        depth = min(block_size, offset + task.num_rows)
        product = Product(depth, num_bytes(like) * head_dim, num_keys, head_dim, ahead)
        place = (first - skipped) * num_groups * num_keys + number * block_size
        rows = (
            sums + FLOAT_BYTES * first * num_groups * head_dim,
            scores + FLOAT_BYTES * place,
            (stop - first) * num_groups,
        )
        mix_into(rows, get(parameters, VALUES) + block, head_dim, product, like)


@inline
def _attend_span(parameters: int, task: _Task, span: _Span, like: np.generic) -> None:
    num_groups = get(parameters, NUM_HEADS) // get(parameters, NUM_KEY_HEADS)
    head_dim = get(parameters, HEAD_DIM)
    num_keys = span.num_blocks * get(parameters, BLOCK_SIZE)
    sums, totals, tops, scores = _places(task.scratch, task.num_rows * num_groups, head_dim)
    skipped, stop = _seen_by(parameters, task, span.offset, num_keys)
    first, stop = skipped * num_groups, stop * num_groups
    _score(parameters, task, span, (first, stop - first), like)
    for vector in range(first, stop):
        _turn_to_weights(
            parameters,
            scores + FLOAT_BYTES * (vector - first) * num_keys,
            _Vector(
                sums + FLOAT_BYTES * vector * head_dim,
                totals + VECTOR_BYTES * vector,
                tops + VECTOR_BYTES * vector,
            ),
            span,
            span.offset + vector // num_groups,
        )
    _weigh_values(parameters, task, span, skipped, like)


@inline
def _finish_vector(parameters: int, row: int, head: int, vector: _Vector, like: np.generic) -> None:
    """Divide by the sum of the weights, the sink's among them."""
    weight, factor = total(load(vector.total, FLOAT32)), splat(_ONE)
    sinks = get(parameters, SINKS)
    if sinks != 0:
        sink, largest_yet = read_float(sinks + FLOAT_BYTES * head), read_float(vector.top)
        reference = splat(max(sink, largest_yet))
        factor = exp(sub(splat(largest_yet), reference))
        weights = add(mul(splat(weight), factor), exp(sub(splat(sink), reference)))
        factor = div(factor, weights)
    else:
        factor = splat(_ONE / weight)
    head_dim = get(parameters, HEAD_DIM)
    place = (row * get(parameters, NUM_HEADS) + head) * head_dim
    out = rows_at(parameters, TARGET) + num_bytes(like) * place
    for d in range(0, head_dim, NUM_LANES):
        scaled = mul(load(vector.sums + FLOAT_BYTES * d, FLOAT32), factor)
        store(out + num_bytes(like) * d, scaled, like)


@inline
def _attend_task(
    parameters: int, where: int, key_head: int, scratch: int, like: np.generic
) -> None:
    """Attend for the task that is described at `where`."""
    task = _Task(read_int(where), read_int(where + WORD), key_head, scratch)
    position = read_int(where + 2 * WORD)
    block_ids = of_pass(parameters, BLOCK_IDS) + WORD * read_int(where + 3 * WORD)
    num_groups = get(parameters, NUM_HEADS) // get(parameters, NUM_KEY_HEADS)
    head_dim, block_size = get(parameters, HEAD_DIM), get(parameters, BLOCK_SIZE)
    window = get(parameters, WINDOW)
    num_vectors = task.num_rows * num_groups
    _start_task(parameters, task, like)
    num_blocks = (position + task.num_rows + block_size - 1) // block_size
    at_once = max(1, _SPAN // block_size)
    index = max(0, position - window + 1) // block_size if window > 0 else 0
    for first in range(index - index % at_once, num_blocks, at_once):
        count, offset = min(at_once, num_blocks - first), position - first * block_size
        span = _Span(block_ids + WORD * first, count, offset)
        _attend_span(parameters, task, span, like)
    sums, totals, tops, _ = _places(scratch, num_vectors, head_dim)
    for vector in range(num_vectors):
        _finish_vector(
            parameters,
            task.first_row + vector // num_groups,
            key_head * num_groups + vector % num_groups,
            _Vector(
                sums + FLOAT_BYTES * vector * head_dim,
                totals + VECTOR_BYTES * vector,
                tops + VECTOR_BYTES * vector,
            ),
            like,
        )


@inline
def _attend(parameters: int, like: np.generic) -> None:
    """Do one thread's work: tasks as long as there are any."""
    thread = take_next(parameters + WORD * THREADS_BEGUN)
    scratch = get(parameters, SCRATCH) + thread * get(parameters, SCRATCH_BYTES)
    num_key_heads = get(parameters, NUM_KEY_HEADS)
    while True:
        taken = take_next(parameters + WORD * TAKEN)
        if taken >= of_pass(parameters, NUM_TASKS) * num_key_heads:
            break
        where = of_pass(parameters, TASKS) + WORD * TASK_FIELDS * (taken // num_key_heads)
        _attend_task(parameters, where, taken % num_key_heads, scratch, like)


def attend_bfloat16(parameters: Any) -> None:
    """Run the kernel for bfloat16."""
    _attend(address_of(parameters), BFLOAT16)


def attend_float32(parameters: Any) -> None:
    """Run the kernel for float32."""
    _attend(address_of(parameters), FLOAT32)
