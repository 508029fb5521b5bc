"""Kernels between the joined product of query, key and value and attention, in one launch.

Heads of query and key are normed if the model does so, and rotated by their row's position. Keys
and values go to their slots in the pages, and queries are returned. A program is one head of a row.

Shape letters: R rows, H query heads, K key heads, D head size, P positions, N slots.
"""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from torch import Tensor

from models.gpu.operands import Norm, Rotation, Slots
from models.torch_library import register


@triton.jit
def place_kernel(
    mixed,
    cos,
    sin,
    positions,
    slots,
    head_weight,
    query,
    keys,
    values,
    num_heads,
    num_key_heads,
    epsilon,
    HEAD: tl.constexpr,
    BLOCK: tl.constexpr,
    IS_NORMED: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    columns = tl.arange(0, BLOCK)
    inside = columns < HEAD
    swapped = tl.where(columns < HEAD // 2, columns + HEAD // 2, columns - HEAD // 2)
    start = mixed + (row * (num_heads + 2 * num_key_heads) + head) * HEAD
    own = tl.load(start + columns, mask=inside, other=0.0).to(tl.float32)
    slot = tl.load(slots + row)
    if head >= num_heads + num_key_heads:
        place = values + (slot * num_key_heads + head - num_heads - num_key_heads) * HEAD
        tl.store(place + columns, own.to(values.dtype.element_ty), mask=inside)
    else:
        other = tl.load(start + swapped, mask=inside, other=0.0).to(tl.float32)
        if IS_NORMED:
            scale = 1.0 / tl.sqrt_rn(tl.sum(own * own) / HEAD + epsilon)
            weight = head_weight + head * HEAD
            own *= scale * tl.load(weight + columns, mask=inside, other=0.0).to(tl.float32)
            other *= scale * tl.load(weight + swapped, mask=inside, other=0.0).to(tl.float32)
        angle = tl.load(positions + row) * HEAD + columns
        cosine = tl.load(cos + angle, mask=inside, other=0.0).to(tl.float32)
        sine = tl.load(sin + angle, mask=inside, other=0.0).to(tl.float32)
        rotated = own * cosine + other * sine
        if head < num_heads:
            place = query + (row * num_heads + head) * HEAD
            tl.store(place + columns, rotated.to(query.dtype.element_ty), mask=inside)
        else:
            place = keys + (slot * num_key_heads + head - num_heads) * HEAD
            tl.store(place + columns, rotated.to(keys.dtype.element_ty), mask=inside)


def _place(
    mixed: Tensor,
    cos: Tensor,
    sin: Tensor,
    positions: Tensor,
    slots: Tensor,
    head_weight: Tensor | None,
    epsilon: float,
    keys: Tensor,
    values: Tensor,
) -> Tensor:
    mixed = mixed.contiguous()
    query = _empty_query(mixed, cos, sin, positions, slots, head_weight, epsilon, keys, values)
    num_rows, num_heads, head_dim = query.shape
    num_key_heads = keys.shape[1]
    place_kernel[(num_rows, num_heads + 2 * num_key_heads)](
        *(mixed, cos, sin, positions, slots, mixed if head_weight is None else head_weight),
        *(query, keys, values, num_heads, num_key_heads, epsilon),
        HEAD=head_dim,
        BLOCK=triton.next_power_of_2(head_dim),
        IS_NORMED=head_weight is not None,
        num_warps=1,
    )
    return query


def _empty_query(mixed: Tensor, cos: Tensor, *others: Any) -> Tensor:
    keys, head_dim = others[-2], cos.shape[1]
    num_heads = mixed.shape[1] // head_dim - 2 * keys.shape[1]
    return mixed.new_empty(len(mixed), num_heads, head_dim)


_call = register(
    "rotate_and_store(Tensor mixed, Tensor cos, Tensor sin, Tensor positions, Tensor slots,"
    " Tensor? head_weight, float epsilon, Tensor(a!) keys, Tensor(b!) values) -> Tensor",
    _place,
    _empty_query,
)


def rotate_and_store(
    mixed: Tensor,  # [R, (H + 2 K) * D]
    rotation: Rotation,
    head_norm: Norm | None,  # norm of the heads of query and key
    slots: Slots,  # written; those of padded rows may be one, of which any row stays
) -> Tensor:  # [R, H, D]
    """Return the rotated queries; store rotated keys and the values in their slots."""
    weight, epsilon = (None, 0.0) if head_norm is None else head_norm
    query: Tensor = _call(
        *(mixed, rotation.cos, rotation.sin, rotation.positions, slots.row_slots),
        *(weight, epsilon, slots.keys, slots.values),
    )
    return query
