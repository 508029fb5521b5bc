"""The compiled CPU kernels, on tensors: one step of one layer each.

Knows shapes and addresses; what is computed is in `models/cpu/kernels`. Only what runs on a CPU
with compiled kernels imports this module: numba need not be there otherwise
(`models/cpu/setup.py`).

Values that never change are set once, when a step is made. Changing values are in the table of the
pass that its steps share. Tensors that a step was made with must stay where they are.

Shape letters: R rows, H query heads, K key heads, D head size, B tokens of a block.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.attention.features import AttentionFeatures
from models.cpu.kernels import attention, draw, packed, parameters, rows
from models.cpu.kernels.compiling import Call, float_bits

# Vectors of one task of attention: enough to make much of each key read, few enough for a cache.
_TASK_VECTORS = 64
# Numbers of a pass from which on rows are divided among threads; fewer are done sooner by one.
_PARALLEL_NUMBERS = 1 << 16
_ALIGNMENT = 64  # bytes: what one thread writes is in no cache line of another's

_NORMS = {torch.bfloat16: rows.norm_bfloat16, torch.float32: rows.norm_float32}
_STORES = {torch.bfloat16: rows.store_bfloat16, torch.float32: rows.store_float32}
_ROTATES = {torch.bfloat16: rows.rotate_bfloat16, torch.float32: rows.rotate_float32}
_ATTENDS = {torch.bfloat16: attention.attend_bfloat16, torch.float32: attention.attend_float32}


class PassTable:
    """Values that the steps of a pass read: number of rows, their places, and addresses of buffers.

    Attributes:
        values: by the fields of `kernels.parameters`.
    """

    __slots__ = ("address", "values")

    def __init__(self) -> None:
        self.values = (ctypes.c_int64 * parameters.NUM_FIELDS)()
        self.address = ctypes.addressof(self.values)

    def put(self, field: int, tensor: Tensor) -> None:
        """Have a field mean a contiguous tensor. The caller keeps it as long as steps may read it.

        A table that kept it would hold the rows of the last pass, in every layer.
        """
        self.values[field] = tensor.data_ptr()


def buffer(number: int) -> int:
    """Return the field of a buffer of rows, from 0 on."""
    return parameters.FIRST_BUFFER + number


def room_for_packed(num_rows: int, num_inputs: int) -> Tensor:
    """Return memory for rows as products of weights in groups take them; no more than is used."""
    return torch.empty(num_rows * packed.row_bytes(num_inputs), dtype=torch.uint8)


@dataclass(frozen=True, slots=True)
class LayerKeys:
    """A layer's keys [blocks, K, D, B] and values [blocks, K, B, D]."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Weights [D] of the norms that queries and keys get before they are rotated."""

    query_weight: Tensor
    key_weight: Tensor
    epsilon: float


def kernels(dtype: torch.dtype) -> list[Any]:
    """Return the kernels beside products that a model taken apart needs, the longest first."""
    return [_ATTENDS[dtype], draw.draw_rows, _ROTATES[dtype], _NORMS[dtype], rows.pick_rows]


def new_step(kernel: Any, num_parameters: int, table: PassTable, *kept: object) -> Call:
    """Return a kernel that reads the table; `kept`: objects whose addresses its parameters hold."""
    call = Call(kernel, num_parameters, table, *kept)
    call.parameters[parameters.PASS] = table.address
    return call


def norm(weight: Tensor, epsilon: float, table: PassTable, source: int, target: int) -> Call:
    """Return the root mean square norm as a step.

    Args:
        weight: [width].
        epsilon: added to the mean square.
        table: of the pass.
        source: field of rows [R, width].
        target: field of as many.
    """
    weight = weight.detach().contiguous()
    call = new_step(_NORMS[weight.dtype], rows.NUM_NORM_PARAMETERS, table, weight)
    call.parameters[rows.NORM_WEIGHT] = weight.data_ptr()
    call.parameters[rows.NORM_WIDTH] = len(weight)
    call.parameters[rows.NORM_EPSILON] = float_bits(epsilon)
    call.parameters[rows.NORM_SOURCE] = source
    call.parameters[rows.NORM_TARGET] = target
    return call


def pick(row_bytes: int, table: PassTable, source: int, target: int) -> Call:
    """Return a step that copies rows of any type, chosen by the table's `PICKED`.

    Args:
        row_bytes: of each.
        table: of the pass.
        source: field of [n, ...] contiguous rows.
        target: field of as many rows as the pass has.
    """
    call = new_step(rows.pick_rows, rows.NUM_PICK_PARAMETERS, table)
    call.parameters[rows.PICK_BYTES] = row_bytes
    call.parameters[rows.PICK_SOURCE], call.parameters[rows.PICK_TARGET] = source, target
    return call


class StorePlan(NamedTuple):
    """Slots for keys and values of a pass: block * B + place in it, all int64."""

    slots: Tensor  # [R]
    shared_rows: Tensor  # [n] rows that are stored once more
    shared_slots: Tensor  # [n] where

    def enter(self, table: PassTable) -> None:
        """Have the steps of a table's pass store by this plan; it must be kept meanwhile."""
        table.put(parameters.SLOTS, self.slots)
        table.put(parameters.SHARED_ROWS, self.shared_rows)
        table.put(parameters.SHARED_SLOTS, self.shared_slots)
        table.values[parameters.NUM_SHARED] = len(self.shared_rows)


class Store:
    """Stores the keys and values of a pass in one layer.

    Args:
        layer: where they go.
        num_threads: for many rows.
    """

    def __init__(self, layer: LayerKeys, num_threads: int) -> None:
        self._table = PassTable()
        kernel = _STORES[layer.keys.dtype]
        self._call = new_step(kernel, rows.NUM_STORE_PARAMETERS, self._table, layer)
        self._call.parameters[rows.KEY_SOURCE] = buffer(0)
        self._call.parameters[rows.VALUE_SOURCE] = buffer(1)
        self._num_threads = num_threads
        _set_layer(self._call, layer)

    def __call__(self, key: Tensor, value: Tensor, plan: StorePlan) -> None:
        """Store `key` and `value` [K, R, D]."""
        _, num_rows, head_dim = key.shape
        key, value = key.contiguous(), value.contiguous()
        self._table.values[parameters.NUM_ROWS] = num_rows
        plan.enter(self._table)
        self._table.put(buffer(0), key)
        self._table.put(buffer(1), value)
        self._call.parameters[rows.ROW_STRIDE] = head_dim
        self._call.parameters[rows.HEAD_STRIDE] = num_rows * head_dim
        self._call.run(self._num_threads if key.numel() >= _PARALLEL_NUMBERS else 1)


@dataclass(frozen=True, slots=True)
class Rotation:
    """Norms and angles that prepare queries and keys.

    `cosines` and `sines` are [positions, D], the sines of the first half negative. `norms` is None
    if queries and keys have none.
    """

    cosines: Tensor
    sines: Tensor
    norms: HeadNorms | None = None


def rotate_and_store(
    layer: LayerKeys, num_heads: int, rotation: Rotation, table: PassTable, mixed: int
) -> Call:
    """Return a step that norms, if wanted, and rotates queries and keys; stores keys and values.

    Args:
        layer: where they go.
        num_heads: H.
        rotation: of the layer.
        table: of the pass.
        mixed: field of [R, (H + 2 K) * D]: queries, keys, values.
    """
    cosines, sines, norms = rotation.cosines, rotation.sines, rotation.norms
    kernel = _ROTATES[layer.keys.dtype]
    call = new_step(kernel, rows.NUM_ROTATE_PARAMETERS, table, layer, rotation)
    num_key_heads, head_dim = _set_layer(call, layer)[:2]
    size = cosines.element_size()
    own = call.parameters
    own[rows.QUERIES] = own[rows.KEY_SOURCE] = own[rows.VALUE_SOURCE] = mixed
    own[rows.KEY_OFFSET] = size * num_heads * head_dim
    own[rows.VALUE_OFFSET] = size * (num_heads + num_key_heads) * head_dim
    own[rows.NUM_HEADS] = num_heads
    own[rows.ROW_STRIDE] = (num_heads + 2 * num_key_heads) * head_dim
    own[rows.HEAD_STRIDE] = head_dim
    own[rows.COSINES] = cosines.data_ptr()
    own[rows.SINES] = sines.data_ptr()
    if norms is not None:
        own[rows.QUERY_NORM] = norms.query_weight.data_ptr()
        own[rows.KEY_NORM] = norms.key_weight.data_ptr()
        own[rows.HEAD_EPSILON] = float_bits(norms.epsilon)
    return call


class Scratch:
    """Memory that kernels of one model use by turns.

    Args:
        num_threads: that use it at once.
        num_bytes: for each of them.
    """

    def __init__(self, num_threads: int, num_bytes: int) -> None:
        self.num_threads = num_threads
        self.num_bytes = -(-num_bytes // _ALIGNMENT) * _ALIGNMENT
        self._memory = np.empty(self.num_bytes * num_threads + _ALIGNMENT, dtype=np.uint8)
        self.address = -(-self._memory.ctypes.data // _ALIGNMENT) * _ALIGNMENT


class AttendPlan(NamedTuple):
    """The tasks of attention in a pass.

    Each task is of rows of one session that follow each other, at most `task_rows`.
    """

    # [tasks * 4] int64: first row, number of rows, position of the first, place in the block ids
    tasks: Tensor
    block_ids: Tensor  # int64, of the sessions, one after the other

    def enter(self, table: PassTable) -> None:
        """Have the steps of a table's pass attend by this plan; it must be kept meanwhile."""
        table.put(parameters.TASKS, self.tasks)
        table.values[parameters.NUM_TASKS] = len(self.tasks) // attention.TASK_FIELDS
        table.put(parameters.BLOCK_IDS, self.block_ids)


def attend(
    layer: LayerKeys,
    num_heads: int,
    features: AttentionFeatures,
    scratch: Scratch,
    table: PassTable,
) -> Call:
    """Return attention in one layer as a step; places and strides of rows are still to be set.

    Args:
        layer: its keys and values.
        num_heads: H.
        features: what it asks for.
        scratch: memory, enough for its tasks; its threads are those that attend.
        table: of the pass.

    Raises:
        ValueError: the heads do not share the key heads, or have another number of sinks.
    """
    num_sinks = num_heads if features.sinks is None else features.sinks.numel()
    if num_heads % layer.keys.shape[1] or num_sinks != num_heads:
        raise ValueError(
            f"{num_heads} query heads with {layer.keys.shape[1]} key heads and {num_sinks} "
            "sinks: not served"
        )
    sinks = None if features.sinks is None else features.sinks.float().contiguous()
    kernel = _ATTENDS[layer.keys.dtype]
    call = new_step(kernel, attention.NUM_PARAMETERS, table, layer, sinks, scratch)
    _, num_key_heads, head_dim, block_size = layer.keys.shape
    own = call.parameters
    own[attention.KEYS] = layer.keys.data_ptr()
    own[attention.VALUES] = layer.values.data_ptr()
    own[attention.NUM_HEADS] = num_heads
    own[attention.NUM_KEY_HEADS] = num_key_heads
    own[attention.HEAD_DIM] = head_dim
    own[attention.BLOCK_SIZE] = block_size
    own[attention.SCALE] = float_bits(features.scale)
    own[attention.WINDOW] = features.window or 0
    own[attention.SOFTCAP] = float_bits(features.softcap or 0.0)
    own[attention.SINKS] = 0 if sinks is None else sinks.data_ptr()
    own[attention.SCRATCH] = scratch.address
    own[attention.SCRATCH_BYTES] = scratch.num_bytes
    return call


def set_attend_rows(
    call: Call, query: int, target: int, *, row_stride: int, head_stride: int
) -> None:
    """Say where attention finds and puts rows.

    Args:
        call: `attend`'s.
        query: field of rows that begin with their first head.
        target: field of [R, H, D].
        row_stride: from a row's queries to the next one's, in numbers.
        head_stride: from a head to the next, in numbers.
    """
    own = call.parameters
    own[attention.QUERY], own[attention.TARGET] = query, target
    own[attention.ROW_STRIDE], own[attention.HEAD_STRIDE] = row_stride, head_stride


class Attend:
    """Attention in one layer by itself; arguments are those of `attend`."""

    def __init__(
        self, layer: LayerKeys, num_heads: int, features: AttentionFeatures, scratch: Scratch
    ) -> None:
        self._table = PassTable()
        self._call = attend(layer, num_heads, features, scratch, self._table)
        self._num_threads = scratch.num_threads

    def __call__(self, query: Tensor, plan: AttendPlan, out: Tensor) -> None:
        """Compute attention of rows to their keys: `query` [R, H, D], a head's numbers in a row.

        `out` is [R, H, D] contiguous.
        """
        row_stride, head_stride, _ = query.stride()
        set_attend_rows(
            self._call, buffer(0), buffer(1), row_stride=row_stride, head_stride=head_stride
        )
        self._table.put(buffer(0), query)
        self._table.put(buffer(1), out)
        plan.enter(self._table)
        self._call.run(self._num_threads)


def attention_scratch(layer: LayerKeys, num_heads: int, num_rows: int) -> int:
    """Return a thread's bytes for tasks of up to so many rows in a layer with H query heads."""
    _, num_key_heads, head_dim, block_size = layer.keys.shape
    num_vectors = num_rows * num_heads // num_key_heads
    return attention.scratch_bytes(num_vectors, head_dim, block_size)


def task_rows(num_groups: int) -> int:
    """Return the rows that a task of attention may have, by the query heads of a key head."""
    return max(1, _TASK_VECTORS // num_groups)


def _set_layer(call: Call, layer: LayerKeys) -> tuple[int, ...]:
    """Set K, D and B of a layer, and return them."""
    sizes = tuple(layer.keys.shape[1:])
    places = (rows.NUM_KEY_HEADS, rows.HEAD_DIM, rows.BLOCK_SIZE)
    call.parameters[rows.KEYS] = layer.keys.data_ptr()
    call.parameters[rows.VALUES] = layer.values.data_ptr()
    for place, size in zip(places, sizes, strict=True):
        call.parameters[place] = size
    return sizes
