"""Paged attention by a kernel of our own, with `varlen_attn`'s signature.

torch's kernel needs torch 2.12 and pages of 256 tokens, or a package beside torch. This one serves
where none of those does. It takes pages of any size and any head size.

A program has a tile of rows of one session, with all query heads that share a key head. So keys are
read once for the group. It goes through the session's keys in steps that begin at multiples of
`BLOCK_KEYS`. Sums begin anew every `PART_KEYS`, and these parts are joined in order. A step or part
that a row does not see leaves the row's sums as they are, bit for bit. If rows are few, each part
has a program of its own, which keeps a GPU busy in long contexts. If they are many, one program
goes through all parts. Tiles have the same size for one row and for a thousand. So a row's result
is a function of its own session's keys alone.

Shape letters: R rows, S sessions, H query heads, K key heads, D head size, W blocks per session.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from models.torch_library import register

BLOCK_KEYS = 64
PART_KEYS = 512  # a multiple of BLOCK_KEYS
_FEW_ROWS = 64  # up to so many, parts are programs of their own
NUM_STAGES = 2
_TILE_ROWS = 8  # rows of a session: a draft's verification is one tile
_LEAST_TILE = 16  # of a product on a GPU
_LOG2_E = tl.constexpr(1.4426950408889634)


def tile_sizes(group: int) -> tuple[int, int]:
    """Return the rows of a tile and the tile's height, for a number of query heads a key head."""
    height = max(_LEAST_TILE, triton.next_power_of_2(_TILE_ROWS * group))
    return height // group, height


def warps_of(height: int) -> int:
    """Warps of a tile: more would leave some of a low one idle, fewer have too many registers."""
    return 4 if height <= 32 else 8


@triton.jit
def session_of(cumulative_rows, num_sessions, place, ROWS: tl.constexpr, APART: tl.constexpr):
    """Find the last session that begins at or before `place`.

    It begins at the rows before it // ROWS + its index * APART. With ROWS of a tile and APART 1
    that counts tiles, with 1 and 0 rows.
    """
    low, high = 0, num_sessions
    while low < high:
        middle = (low + high) // 2
        if tl.load(cumulative_rows + middle) // ROWS + middle * APART <= place:
            low = middle + 1
        else:
            high = middle
    return low - 1


@triton.jit
def joined(best, total, sums, other_best, other_total, other_sums):
    """Join the sums of two parts of the keys. Each product is rounded once, wherever this runs."""
    higher = tl.maximum(best, other_best)
    # A row that sees no key yet has -inf, from which nothing can be subtracted.
    pivot = tl.where(higher == -float("inf"), 0.0, higher)
    shrunk, other_shrunk = tl.exp2(best - pivot), tl.exp2(other_best - pivot)
    total = tl.fma(total, shrunk, other_total * other_shrunk)
    factors = tl.broadcast_to(shrunk[:, None], sums.shape)
    return higher, total, tl.fma(sums, factors, other_sums * other_shrunk[:, None])


@triton.jit
def part_of_sum(
    asked,
    keys,
    values,
    pages,
    position,
    page_size,
    page_stride,
    slot_stride,
    left,
    scale,
    first,
    stop,
    TILE: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """Return the highest score, the weights' sum and the values' of keys `first` to `stop`."""
    columns = tl.arange(0, BLOCK)
    inside = columns < HEAD
    best = tl.full((TILE,), -float("inf"), tl.float32)
    total = tl.zeros((TILE,), tl.float32)
    sums = tl.zeros((TILE, BLOCK), tl.float32)
    for block in range(first, stop, BLOCK_KEYS):
        key = block + tl.arange(0, BLOCK_KEYS)
        is_key = key < stop
        page = tl.load(pages + key // page_size, mask=is_key, other=0).to(tl.int64)
        slot = page * page_stride + key % page_size * slot_stride
        key_tile = tl.load(
            keys + slot[None, :] + columns[:, None],
            mask=is_key[None, :] & inside[:, None],
            other=0.0,
        )
        scores = tl.dot(asked, key_tile, input_precision="ieee") * (scale * _LOG2_E)
        sees = is_key[None, :] & (key[None, :] <= position[:, None])
        if left >= 0:
            sees = sees & (key[None, :] >= position[:, None] - left)
        scores = tl.where(sees, scores, -float("inf"))
        higher = tl.maximum(best, tl.max(scores, axis=1))
        pivot = tl.where(higher == -float("inf"), 0.0, higher)
        shrunk = tl.exp2(best - pivot)
        weights = tl.exp2(scores - pivot[:, None])
        total = tl.fma(total, shrunk, tl.sum(weights, axis=1))
        value_tile = tl.load(
            values + slot[:, None] + columns[None, :],
            mask=is_key[:, None] & inside[None, :],
            other=0.0,
        )
        sums = sums * shrunk[:, None]
        sums = tl.dot(weights.to(value_tile.dtype), value_tile, sums, input_precision="ieee")
        best = higher
    return best, total, sums


@triton.jit
def attention_kernel(
    query,
    keys,
    values,
    cumulative_rows,
    num_keys,
    table,
    out,
    log_sums,
    part_bests,
    part_totals,
    part_sums,
    num_rows,
    num_sessions,
    table_width,
    num_heads,
    page_size,
    page_stride,
    slot_stride,
    left,
    scale,
    GROUP: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    PART_KEYS: tl.constexpr,
    IS_PARTED: tl.constexpr,
    WITH_LOG_SUMS: tl.constexpr,
):
    """Compute a tile; if it is parted, one part of its sums."""
    tile, key_head = tl.program_id(0), tl.program_id(1)
    session = session_of(cumulative_rows, num_sessions, tile, ROWS=ROWS, APART=1)
    start = tl.load(cumulative_rows + session)
    stop = tl.load(cumulative_rows + session + 1)
    first = start + (tile - start // ROWS - session) * ROWS
    if first < stop:
        before = tl.load(num_keys + session) - stop  # position of a row, less its index
        place = tl.arange(0, TILE)
        row = first + place // GROUP
        is_row = (place < ROWS * GROUP) & (row < stop)
        position = before + row
        columns = tl.arange(0, BLOCK)
        head = key_head * GROUP + place % GROUP
        line = row.to(tl.int64) * num_heads + head
        places = line[:, None] * HEAD + columns[None, :]
        is_inside = is_row[:, None] & (columns < HEAD)[None, :]
        asked = tl.load(query + places, mask=is_inside, other=0.0)
        end = before + tl.minimum(first + ROWS, stop)  # keys that the tile's last row sees
        begin = 0
        if left >= 0:
            begin = tl.maximum(before + first - left, 0) // BLOCK_KEYS * BLOCK_KEYS
        pages = table + session.to(tl.int64) * table_width
        keys += key_head * HEAD
        values += key_head * HEAD
        if IS_PARTED:
            part = tl.program_id(2)
            begin = tl.maximum(begin, part * PART_KEYS)
            end = tl.minimum(end, (part + 1) * PART_KEYS)
            if begin < end:
                best, total, sums = part_of_sum(
                    *(asked, keys, values, pages, position),
                    *(page_size, page_stride, slot_stride, left, scale, begin, end),
                    TILE=TILE,
                    HEAD=HEAD,
                    BLOCK=BLOCK,
                    BLOCK_KEYS=BLOCK_KEYS,
                )
                own = part.to(tl.int64) * num_rows * num_heads
                tl.store(part_bests + own + line, best, mask=is_row)
                tl.store(part_totals + own + line, total, mask=is_row)
                tl.store(part_sums + own * HEAD + places, sums, mask=is_inside)
        else:
            best = tl.full((TILE,), -float("inf"), tl.float32)
            total = tl.zeros((TILE,), tl.float32)
            sums = tl.zeros((TILE, BLOCK), tl.float32)
            for part_first in range(begin // PART_KEYS * PART_KEYS, end, PART_KEYS):
                part_best, part_total, part = part_of_sum(
                    *(asked, keys, values, pages, position),
                    *(page_size, page_stride, slot_stride, left, scale),
                    tl.maximum(part_first, begin),
                    tl.minimum(part_first + PART_KEYS, end),
                    TILE=TILE,
                    HEAD=HEAD,
                    BLOCK=BLOCK,
                    BLOCK_KEYS=BLOCK_KEYS,
                )
                best, total, sums = joined(best, total, sums, part_best, part_total, part)
            total = tl.where(is_row, total, 1.0)
            result = sums / total[:, None]
            tl.store(out + places, result.to(out.dtype.element_ty), mask=is_inside)
            if WITH_LOG_SUMS:
                log_sum = (best + tl.log2(total)) / _LOG2_E
                tl.store(log_sums + head.to(tl.int64) * num_rows + row, log_sum, mask=is_row)


@triton.jit
def join_kernel(
    part_bests,
    part_totals,
    part_sums,
    cumulative_rows,
    num_keys,
    out,
    log_sums,
    num_rows,
    num_sessions,
    num_heads,
    left,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    PART_KEYS: tl.constexpr,
    WITH_LOG_SUMS: tl.constexpr,
):
    """Join the parts that a row sees, in order."""
    row, head = tl.program_id(0), tl.program_id(1)
    session = session_of(cumulative_rows, num_sessions, row, ROWS=1, APART=0)
    position = tl.load(num_keys + session) - tl.load(cumulative_rows + session + 1) + row
    first = 0
    if left >= 0:
        first = tl.maximum(position - left, 0) // PART_KEYS
    columns = tl.arange(0, BLOCK)
    inside = columns < HEAD
    line = row.to(tl.int64) * num_heads + head
    part_size = tl.full((), num_heads, tl.int64) * num_rows
    best = tl.full((1,), -float("inf"), tl.float32)
    total = tl.zeros((1,), tl.float32)
    sums = tl.zeros((1, BLOCK), tl.float32)
    for part in range(first, position // PART_KEYS + 1):
        own = part * part_size + line
        part_best = tl.load(part_bests + own + tl.arange(0, 1))
        part_total = tl.load(part_totals + own + tl.arange(0, 1))
        some = tl.load(part_sums + own * HEAD + columns, mask=inside, other=0.0)
        best, total, sums = joined(best, total, sums, part_best, part_total, some[None, :])
    result = (sums / total[:, None]).to(out.dtype.element_ty)
    tl.store(out + line * HEAD + columns[None, :], result, mask=inside[None, :])
    if WITH_LOG_SUMS:
        log_sum = (best + tl.log2(total)) / _LOG2_E
        tl.store(log_sums + head.to(tl.int64) * num_rows + row + tl.arange(0, 1), log_sum)


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    cumulative_rows: Tensor,
    num_keys: Tensor,
    table: Tensor,
    max_keys: int,
    scale: float,
    left: int,
    with_log_sums: bool,
) -> tuple[Tensor, Tensor]:
    query = query.contiguous()
    out, log_sums = _empty(query, with_log_sums)
    num_rows, num_heads, head_dim = query.shape
    page_size, key_heads = keys.shape[1:3]
    assert keys.stride() == values.stride(), "both lie in one tensor"
    assert keys.stride()[2:] == (head_dim, 1), "heads lie one after the other"
    group = num_heads // key_heads
    rows, height = tile_sizes(group)
    num_sessions = len(num_keys)
    num_parts = triton.cdiv(max_keys, PART_KEYS)
    is_parted = num_rows <= _FEW_ROWS and num_parts > 1
    stored = num_parts if is_parted else 0
    bests, totals = query.new_empty((2, stored, num_rows, num_heads), dtype=torch.float32)
    sums = query.new_empty((stored, num_rows, num_heads, head_dim), dtype=torch.float32)
    terms = {
        "HEAD": head_dim,
        "BLOCK": max(_LEAST_TILE, triton.next_power_of_2(head_dim)),
        "PART_KEYS": PART_KEYS,
        "WITH_LOG_SUMS": with_log_sums,
    }
    grid = (num_rows // rows + num_sessions, key_heads, num_parts if is_parted else 1)
    attention_kernel[grid](
        *(query, keys, values, cumulative_rows, num_keys, table, out, log_sums),
        *(bests, totals, sums, num_rows, num_sessions, table.shape[1], num_heads),
        *(page_size, keys.stride(0), keys.stride(1), left, scale),
        GROUP=group,
        ROWS=rows,
        TILE=height,
        BLOCK_KEYS=BLOCK_KEYS,
        IS_PARTED=is_parted,
        **terms,
        num_warps=warps_of(height),
        num_stages=NUM_STAGES,
    )
    if is_parted:
        join_kernel[(num_rows, num_heads)](
            *(bests, totals, sums, cumulative_rows, num_keys, out, log_sums),
            *(num_rows, num_sessions, num_heads, left),
            **terms,
            num_warps=1,
        )
    return out, log_sums


def _empty(query: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    num_rows, num_heads, _ = query.shape
    shape = (num_heads, num_rows) if others[-1] else (0, 0)
    return torch.empty_like(query), query.new_empty(shape, dtype=torch.float32)


_call = register(
    "paged_attention(Tensor query, Tensor keys, Tensor values, Tensor cumulative_rows,"
    " Tensor num_keys, Tensor table, int max_keys, float scale, int left, bool with_log_sums)"
    " -> (Tensor, Tensor)",
    _attend,
    _empty,
)


def paged_varlen_attn(
    query: Tensor,  # [R, H, D]
    key: Tensor,  # [pages, block_size, K, D]
    value: Tensor,  # [pages, block_size, K, D]
    cu_seq_q: Tensor,  # [S + 1] int32
    cu_seq_k: Tensor | None,  # not read: `seqused_k` says it
    max_q: int,  # not read: tiles find their sessions
    max_k: int,  # no session has more keys
    *,
    return_aux: object = None,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool = False,
    seqused_k: Tensor,  # [S] int32
    block_table: Tensor,  # [S, W] int32
    num_splits: int | None = None,  # not read: parts have a fixed size
) -> Tensor | tuple[Tensor, Tensor]:
    """Attention [R, H, D], and with `return_aux` its log-sum-exp [H, R] in float32 as well.

    Every row belongs to a session, whose last row is at its last key.

    Raises:
        ValueError: a window that reaches beyond the row itself.
    """
    left, right = window_size
    if right != 0:
        raise ValueError(f"rows see no later keys here, and the window is {window_size}")
    out, log_sums = _call(
        *(query, key, value, cu_seq_q, seqused_k, block_table),
        *(max_k, scale, left, return_aux is not None),
    )
    return (out, log_sums) if return_aux is not None else out
