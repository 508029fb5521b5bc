"""Paged attention by a kernel of our own, with `varlen_attn`'s signature.

torch's kernel needs torch 2.12 and pages of 256 tokens, or a package beside torch. This one serves
where none of those does. It takes pages of any size and any head size.

A program has a tile of rows of one session, with all query heads that share a key head. So keys are
read once for the group. It goes through the session's keys in steps whose borders are multiples of
`BLOCK_KEYS`. A step that a row does not see leaves the row's sums as they are, bit for bit. Tiles
have the same size for one row and for a thousand. So a row's result is a function of its own
session's keys alone.

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
NUM_WARPS, NUM_STAGES = 4, 2
_TILE_ROWS = 8  # rows of a session: a draft's verification is one tile
_LEAST_TILE = 16  # of a product on a GPU
_LOG2_E = tl.constexpr(1.4426950408889634)


def tile_sizes(group: int) -> tuple[int, int]:
    """Return the rows of a tile and the tile's height, for a number of query heads a key head."""
    height = max(_LEAST_TILE, triton.next_power_of_2(_TILE_ROWS * group))
    return height // group, height


@triton.jit
def session_of(cumulative_rows, num_sessions, tile, ROWS: tl.constexpr):
    """Find the session of a tile. Session s has its first tile at rows before it // ROWS + s."""
    low, high = 0, num_sessions
    while low < high:
        middle = (low + high) // 2
        if tl.load(cumulative_rows + middle) // ROWS + middle <= tile:
            low = middle + 1
        else:
            high = middle
    return low - 1


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
    WITH_LOG_SUMS: tl.constexpr,
):
    tile, key_head = tl.program_id(0), tl.program_id(1)
    session = session_of(cumulative_rows, num_sessions, tile, ROWS=ROWS)
    start = tl.load(cumulative_rows + session)
    stop = tl.load(cumulative_rows + session + 1)
    first = start + (tile - start // ROWS - session) * ROWS
    if first < stop:
        own_keys = tl.load(num_keys + session)
        place = tl.arange(0, TILE)
        row = first + place // GROUP
        is_row = (place < ROWS * GROUP) & (row < stop)
        position = own_keys - stop + row  # of the row's own key
        columns = tl.arange(0, BLOCK)
        inside = columns < HEAD
        head = key_head * GROUP + place % GROUP
        line = row.to(tl.int64) * num_heads + head
        rows_inside = is_row[:, None] & inside[None, :]
        asked = tl.load(
            query + line[:, None] * HEAD + columns[None, :], mask=rows_inside, other=0.0
        )
        best = tl.full((TILE,), -float("inf"), tl.float32)
        total = tl.zeros((TILE,), tl.float32)
        sums = tl.zeros((TILE, BLOCK), tl.float32)
        last = tl.minimum(first + ROWS, stop) - 1
        end = own_keys - stop + last + 1  # keys that the tile's last row sees
        begin = 0
        if left >= 0:
            begin = tl.maximum(own_keys - stop + first - left, 0) // BLOCK_KEYS * BLOCK_KEYS
        pages = table + session.to(tl.int64) * table_width
        from_head = key_head * HEAD
        for block in range(begin, end, BLOCK_KEYS):
            key = block + tl.arange(0, BLOCK_KEYS)
            is_key = key < end
            page = tl.load(pages + key // page_size, mask=is_key, other=0).to(tl.int64)
            slot = page * page_stride + key % page_size * slot_stride + from_head
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
            # Before a row's first key its best is -inf, from which nothing can be subtracted.
            pivot = tl.where(higher == -float("inf"), 0.0, higher)
            shrunk = tl.exp2(best - pivot)
            weights = tl.exp2(scores - pivot[:, None])
            total = total * shrunk + tl.sum(weights, axis=1)
            value_tile = tl.load(
                values + slot[:, None] + columns[None, :],
                mask=is_key[:, None] & inside[None, :],
                other=0.0,
            )
            sums = sums * shrunk[:, None]
            sums = tl.dot(weights.to(value_tile.dtype), value_tile, sums, input_precision="ieee")
            best = higher
        result = sums / tl.where(is_row, total, 1.0)[:, None]
        place_out = out + line[:, None] * HEAD + columns[None, :]
        tl.store(place_out, result.to(out.dtype.element_ty), mask=rows_inside)
        if WITH_LOG_SUMS:
            log_sum = (best + tl.log2(tl.where(is_row, total, 1.0))) / _LOG2_E
            tl.store(log_sums + head.to(tl.int64) * num_rows + row, log_sum, mask=is_row)


def _attend(
    query: Tensor,
    keys: Tensor,
    values: Tensor,
    cumulative_rows: Tensor,
    num_keys: Tensor,
    table: Tensor,
    scale: float,
    left: int,
    with_log_sums: bool,
) -> tuple[Tensor, Tensor]:
    query = query.contiguous()
    out, log_sums = _empty(
        *(query, keys, values, cumulative_rows, num_keys, table, scale, left, with_log_sums)
    )
    num_rows, num_heads, head_dim = query.shape
    page_size, key_heads = keys.shape[1:3]
    assert keys.stride() == values.stride(), "both lie in one tensor"
    assert keys.stride()[2:] == (head_dim, 1), "heads lie one after the other"
    group = num_heads // key_heads
    rows, height = tile_sizes(group)
    num_sessions = len(num_keys)
    attention_kernel[(num_rows // rows + num_sessions, key_heads)](
        *(query, keys, values, cumulative_rows, num_keys, table, out, log_sums),
        *(num_rows, num_sessions, table.shape[1], num_heads),
        *(page_size, keys.stride(0), keys.stride(1), left, scale),
        GROUP=group,
        ROWS=rows,
        TILE=height,
        HEAD=head_dim,
        BLOCK=max(_LEAST_TILE, triton.next_power_of_2(head_dim)),
        BLOCK_KEYS=BLOCK_KEYS,
        WITH_LOG_SUMS=with_log_sums,
        num_warps=NUM_WARPS,
        num_stages=NUM_STAGES,
    )
    return out, log_sums


def _empty(query: Tensor, *others: Any) -> tuple[Tensor, Tensor]:
    num_rows, num_heads, _ = query.shape
    shape = (num_heads, num_rows) if others[-1] else (0, 0)
    return torch.empty_like(query), query.new_empty(shape, dtype=torch.float32)


_call = register(
    "paged_attention(Tensor query, Tensor keys, Tensor values, Tensor cumulative_rows,"
    " Tensor num_keys, Tensor table, float scale, int left, bool with_log_sums)"
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
    max_k: int,  # not read
    *,
    return_aux: object = None,
    scale: float,
    window_size: tuple[int, int],
    enable_gqa: bool = False,
    seqused_k: Tensor,  # [S] int32
    block_table: Tensor,  # [S, W] int32
    num_splits: int | None = None,  # not read: keys are never split
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
        *(query, key, value, cu_seq_q, seqused_k, block_table, scale, left, return_aux is not None)
    )
    return (out, log_sums) if return_aux is not None else out
