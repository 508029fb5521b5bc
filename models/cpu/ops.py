"""The compiled CPU kernels, on tensors.

Knows shapes and addresses; what is computed is in `models/kernels`. Only what runs on a CPU with
compiled kernels imports this module: numba need not be there otherwise (`models/cpu/setup.py`).

Each object here is one step of one layer: what is the same in every pass is set once. The tensors
it was made with must stay where they are. None may be used from several threads at once.

Shape letters: R rows, H query heads, K key heads, D head size, B tokens of a block, I the width of
an MLP.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.attention.features import AttentionFeatures
from models.cpu.kernels import attention, rows
from models.cpu.kernels.compiling import Call, float_bits

# Vectors of one task of attention: enough to make much of each key read, few enough for a cache.
_TASK_VECTORS = 64
# Numbers of a pass from which on rows are divided among threads; fewer are done sooner by one.
_PARALLEL_NUMBERS = 1 << 16
_ALIGNMENT = 64  # bytes: what one thread writes is in no cache line of another's

_NORMS = {torch.bfloat16: rows.norm_bfloat16, torch.float32: rows.norm_float32}
_GATES = {torch.bfloat16: rows.gate_bfloat16, torch.float32: rows.gate_float32}
_STORES = {torch.bfloat16: rows.store_bfloat16, torch.float32: rows.store_float32}
_ROTATES = {torch.bfloat16: rows.rotate_bfloat16, torch.float32: rows.rotate_float32}
_ATTENDS = {torch.bfloat16: attention.attend_bfloat16, torch.float32: attention.attend_float32}


@dataclass(frozen=True, slots=True)
class LayerKeys:
    """Where a layer's keys [blocks, K, D, B] and values [blocks, K, B, D] are."""

    keys: Tensor
    values: Tensor


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """Weights [D] of the norms that queries and keys get before they are rotated."""

    query_weight: Tensor
    key_weight: Tensor
    epsilon: float


class _ByRow:
    """A kernel that goes row by row.

    Args:
        call: of one of `models/cpu/kernels/rows.py`.
        num_threads: for many rows.
    """

    def __init__(self, call: Call, num_threads: int) -> None:
        self._call = call
        self._num_threads = num_threads

    def _run(self, num_rows: int, num_numbers: int) -> None:
        parameters = self._call.parameters
        parameters[rows.TAKEN] = 0
        parameters[rows.NUM_ROWS] = num_rows
        self._call.run(self._num_threads if num_numbers >= _PARALLEL_NUMBERS else 1)


class Norm(_ByRow):
    """Root mean square norm.

    Args:
        weight: [width].
        epsilon: added to the mean square.
        num_threads: for many rows.
    """

    def __init__(self, weight: Tensor, epsilon: float, num_threads: int) -> None:
        super().__init__(Call(_NORMS[weight.dtype], rows.NUM_NORM_PARAMETERS), num_threads)
        self._weight = weight.detach().contiguous()
        self._call.parameters[rows.NORM_WEIGHT] = self._weight.data_ptr()
        self._call.parameters[rows.NORM_WIDTH] = len(weight)
        self._call.parameters[rows.NORM_EPSILON] = float_bits(epsilon)

    def __call__(self, hidden: Tensor, out: Tensor) -> None:
        """Of rows [R, width] into `out`, both contiguous."""
        parameters = self._call.parameters
        parameters[rows.NORM_ROWS] = hidden.data_ptr()
        parameters[rows.NORM_OUT] = out.data_ptr()
        self._run(hidden.shape[0], hidden.numel())


class Gate(_ByRow):
    """SiLU of the left half of rows times the right.

    Args:
        widths: of the pieces the result comes in; their sum is I.
        dtype: of the rows.
        num_threads: for many rows.
    """

    def __init__(self, widths: Sequence[int], dtype: torch.dtype, num_threads: int) -> None:
        super().__init__(Call(_GATES[dtype], rows.NUM_GATE_PARAMETERS), num_threads)
        self._widths = (ctypes.c_int64 * len(widths))(*widths)
        self._call.parameters[rows.GATE_WIDTH] = sum(widths)
        self._call.parameters[rows.GATE_WIDTHS] = ctypes.addressof(self._widths)
        self._call.parameters[rows.GATE_NUM_PIECES] = len(widths)

    def __call__(self, gate_up: Tensor, out: Tensor) -> None:
        """Of rows [R, 2 I] the pieces [R, width] one after the other into `out` [R * I]."""
        parameters = self._call.parameters
        parameters[rows.GATE_UP] = gate_up.data_ptr()
        parameters[rows.GATE_OUT] = out.data_ptr()
        self._run(gate_up.shape[0], gate_up.numel())


class Store(_ByRow):
    """Stores the keys and values of a pass in one layer.

    Args:
        layer: where they go.
        num_threads: for many rows.
    """

    def __init__(self, layer: LayerKeys, num_threads: int) -> None:
        call = Call(_STORES[layer.keys.dtype], rows.NUM_STORE_PARAMETERS)
        super().__init__(call, num_threads)
        _set_layer(call, layer)

    def __call__(self, key: Tensor, value: Tensor, slots: Tensor) -> None:
        """Store `key` and `value` [K, R, D] of rows with `slots` [R], block * B + place in it."""
        key, value = key.contiguous(), value.contiguous()
        _, num_rows, head_dim = key.shape
        parameters = self._call.parameters
        parameters[rows.SLOTS] = slots.data_ptr()
        parameters[rows.KEY_SOURCE] = key.data_ptr()
        parameters[rows.VALUE_SOURCE] = value.data_ptr()
        parameters[rows.ROW_STRIDE] = head_dim
        parameters[rows.HEAD_STRIDE] = num_rows * head_dim
        self._run(num_rows, key.numel())


class RotateAndStore(_ByRow):
    """Norms, if wanted, and rotates queries and keys; stores keys and values.

    Args:
        layer: where they go.
        num_heads: H.
        cosines: [positions, D].
        sines: [positions, D], the first half negative.
        norms: None where queries and keys have none.
        num_threads: for many rows.
    """

    def __init__(
        self,
        layer: LayerKeys,
        num_heads: int,
        cosines: Tensor,
        sines: Tensor,
        norms: HeadNorms | None,
        num_threads: int,
    ) -> None:
        call = Call(_ROTATES[layer.keys.dtype], rows.NUM_ROTATE_PARAMETERS)
        super().__init__(call, num_threads)
        self._kept = (layer, cosines, sines, norms)
        num_key_heads, head_dim = _set_layer(call, layer)[:2]
        self._key_offset = num_heads * head_dim * cosines.element_size()
        self._value_offset = self._key_offset + num_key_heads * head_dim * cosines.element_size()
        parameters = call.parameters
        parameters[rows.NUM_HEADS] = num_heads
        parameters[rows.ROW_STRIDE] = (num_heads + 2 * num_key_heads) * head_dim
        parameters[rows.HEAD_STRIDE] = head_dim
        parameters[rows.COSINES] = cosines.data_ptr()
        parameters[rows.SINES] = sines.data_ptr()
        if norms is not None:
            parameters[rows.QUERY_NORM] = norms.query_weight.data_ptr()
            parameters[rows.KEY_NORM] = norms.key_weight.data_ptr()
            parameters[rows.HEAD_EPSILON] = float_bits(norms.epsilon)

    def __call__(self, mixed: Tensor, positions: Tensor, slots: Tensor) -> None:
        """Of `mixed` [R, (H + 2 K) * D] contiguous: queries, keys, values; the first two in place.

        `positions` and `slots` are int64, [R]; a slot is block * B + place in it.
        """
        first = mixed.data_ptr()
        parameters = self._call.parameters
        parameters[rows.QUERIES] = first
        parameters[rows.KEY_SOURCE] = first + self._key_offset
        parameters[rows.VALUE_SOURCE] = first + self._value_offset
        parameters[rows.POSITIONS] = positions.data_ptr()
        parameters[rows.SLOTS] = slots.data_ptr()
        self._run(mixed.shape[0], mixed.numel())


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


class AttendPlan:
    """Who attends to what in a pass.

    Args:
        tasks: first row, number of rows, position of the first, place in the block ids; each is
            of rows of one session that follow each other, at most `task_rows`.
        block_ids: of the sessions, one after the other.
    """

    __slots__ = ("_arrays", "block_ids", "num_tasks", "tasks")

    def __init__(
        self, tasks: Sequence[tuple[int, int, int, int]], block_ids: Sequence[int]
    ) -> None:
        self._arrays = (np.array(tasks, dtype=np.int64), np.array(block_ids, dtype=np.int64))
        self.num_tasks = len(tasks)
        self.tasks, self.block_ids = (array.ctypes.data for array in self._arrays)  # addresses


class Attend:
    """Attention in one layer.

    Args:
        layer: its keys and values.
        num_heads: H.
        features: what it asks for.
        scratch: memory, enough for its tasks; its threads are those that attend.

    Raises:
        ValueError: the heads do not share the key heads, or have another number of sinks.
    """

    def __init__(
        self, layer: LayerKeys, num_heads: int, features: AttentionFeatures, scratch: Scratch
    ) -> None:
        num_sinks = num_heads if features.sinks is None else features.sinks.numel()
        if num_heads % layer.keys.shape[1] or num_sinks != num_heads:
            raise ValueError(
                f"{num_heads} query heads with {layer.keys.shape[1]} key heads and {num_sinks} "
                "sinks: not served"
            )
        self._layer = layer
        self._call = Call(_ATTENDS[layer.keys.dtype], attention.NUM_PARAMETERS)
        self._scratch = scratch
        _, num_key_heads, head_dim, block_size = layer.keys.shape
        self._sinks = None if features.sinks is None else features.sinks.float().contiguous()
        parameters = self._call.parameters
        parameters[attention.KEYS] = layer.keys.data_ptr()
        parameters[attention.VALUES] = layer.values.data_ptr()
        parameters[attention.NUM_HEADS] = num_heads
        parameters[attention.NUM_KEY_HEADS] = num_key_heads
        parameters[attention.HEAD_DIM] = head_dim
        parameters[attention.BLOCK_SIZE] = block_size
        parameters[attention.SCALE] = float_bits(features.scale)
        parameters[attention.WINDOW] = features.window or 0
        parameters[attention.SOFTCAP] = float_bits(features.softcap or 0.0)
        parameters[attention.SINKS] = 0 if self._sinks is None else self._sinks.data_ptr()
        parameters[attention.SCRATCH] = scratch.address
        parameters[attention.SCRATCH_BYTES] = scratch.num_bytes

    def __call__(
        self, query: int, row_stride: int, head_stride: int, plan: AttendPlan, out: Tensor
    ) -> None:
        """Attention of the rows of a pass to their keys.

        Args:
            query: address of the first row's first head.
            row_stride: from a row's queries to the next one's, in numbers.
            head_stride: from a head to the next, in numbers.
            plan: of the pass.
            out: [R, H, D] contiguous.
        """
        parameters = self._call.parameters
        parameters[attention.THREADS_BEGUN] = 0
        parameters[attention.TASKS_TAKEN] = 0
        parameters[attention.TASKS] = plan.tasks
        parameters[attention.NUM_TASKS] = plan.num_tasks
        parameters[attention.BLOCK_IDS] = plan.block_ids
        parameters[attention.QUERY] = query
        parameters[attention.ROW_STRIDE] = row_stride
        parameters[attention.HEAD_STRIDE] = head_stride
        parameters[attention.OUT] = out.data_ptr()
        self._call.run(self._scratch.num_threads)


def attention_scratch(layer: LayerKeys, num_heads: int, num_rows: int) -> int:
    """Bytes that a thread needs for tasks of up to so many rows in a layer with H query heads."""
    _, num_key_heads, head_dim, block_size = layer.keys.shape
    num_vectors = num_rows * num_heads // num_key_heads
    return attention.scratch_bytes(num_vectors, head_dim, block_size)


def task_rows(num_groups: int) -> int:
    """Rows a task of attention may have, by the query heads of a key head."""
    return max(1, _TASK_VECTORS // num_groups)


def _set_layer(call: Call, layer: LayerKeys) -> tuple[int, ...]:
    """K, D and B."""
    sizes = tuple(layer.keys.shape[1:])
    places = (rows.NUM_KEY_HEADS, rows.HEAD_DIM, rows.BLOCK_SIZE)
    call.parameters[rows.KEYS] = layer.keys.data_ptr()
    call.parameters[rows.VALUES] = layer.values.data_ptr()
    for place, size in zip(places, sizes, strict=True):
        call.parameters[place] = size
    return sizes
