"""One ragged pass for the compiled CPU kernels: where keys lie, and who attends to what.

`GatherPass` and its storage are the same for torch's own operations. Here a key head's tokens of a
block lie side by side for each of its numbers. So scores of neighbouring keys are computed
together, without a sum across a vector.

Shape letters: R rows, H query heads, K key heads, D head size, B tokens of a block.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from models.attention.features import AttentionFeatures
from models.cpu.kernels.compiling import Call
from models.cpu.ops import (
    Attend,
    AttendPlan,
    LayerKeys,
    PassTable,
    Scratch,
    Store,
    StorePlan,
    attend,
    attention_scratch,
    task_rows,
)
from models.kv.rows import SequenceRows, further_slots
from models.kv.storage import KVBlocks, KVSizes


class LaneStorage(KVBlocks):
    """Keys and values of all layers, and the kernels that write and read them.

    Args:
        sizes: how much there is.
        num_heads: H; layers may have another number each.
        num_threads: threads of a kernel.
    """

    def __init__(self, sizes: KVSizes, num_heads: int, num_threads: int) -> None:
        super().__init__(sizes, (sizes.num_heads, sizes.head_dim, sizes.block_size))
        shape = (-1, sizes.num_heads, sizes.block_size, sizes.head_dim)
        self.layers = [LayerKeys(keys, values.view(shape)) for keys, values in self.blocks]
        self.blocks = [(layer.keys, layer.values) for layer in self.layers]
        self.num_threads = num_threads
        self.task_rows = task_rows(num_heads // sizes.num_heads)  # the most a task may have
        self._scratch: dict[int, Scratch] = {}  # by query heads
        self._stores: dict[int, Store] = {}
        self._attends: dict[int, tuple[AttentionFeatures, int, Attend]] = {}

    def store(self, layer: int) -> Store:
        """Return the call that stores keys and values in a layer."""
        if layer not in self._stores:
            self._stores[layer] = Store(self.layers[layer], self.num_threads)
        return self._stores[layer]

    def attend(self, layer: int, num_heads: int, features: AttentionFeatures) -> Attend:
        """Return the attention of a layer with so many query heads; its features must not change.

        Raises:
            ValueError: the heads do not go with the key heads or the sinks.
        """
        found = self._attends.get(layer)
        if found is not None and found[1] == num_heads and found[0].is_like(features):
            return found[2]
        made = Attend(self.layers[layer], num_heads, features, self._room(layer, num_heads))
        self._attends[layer] = (features, num_heads, made)
        return made

    def attend_step(
        self, layer: int, num_heads: int, features: AttentionFeatures, table: PassTable
    ) -> Call:
        """Return attention in a layer as a step of passes with this table, see `ops.attend`."""
        room = self._room(layer, num_heads)
        return attend(self.layers[layer], num_heads, features, room, table)

    def _room(self, layer: int, num_heads: int) -> Scratch:
        """Return memory for attention of so many query heads; layers use it by turns."""
        if num_heads not in self._scratch:
            num_bytes = attention_scratch(self.layers[layer], num_heads, self.task_rows)
            self._scratch[num_heads] = Scratch(self.num_threads, num_bytes)
        return self._scratch[num_heads]


@dataclass(frozen=True, slots=True)
class CpuPass:
    """Everything the layers need to know about one pass."""

    storage: LaneStorage
    token_ids: Tensor  # [R] int64
    slots: StorePlan  # slots of the rows' keys and values
    positions: Tensor  # [R] int64
    kept: Tensor  # int64, the rows whose logits are wanted
    plan: AttendPlan
    windows: tuple[int | None, ...]  # each layer's window

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store the rows' keys and values [K, R, D].

        Raises:
            ValueError: they are of another type or shape than the storage's.
        """
        storage = self.storage
        shape = (storage.num_heads, len(self.token_ids), storage.head_dim)
        _check("keys", key, shape, storage.dtype)
        _check("values", value, shape, storage.dtype)
        storage.store(layer)(key, value, self.slots)

    def attend(self, layer: int, query: Tensor, features: AttentionFeatures) -> Tensor:
        """Attend from rows `query` [R, H, D] to the stored keys of their sessions, [R, H, D].

        Raises:
            ValueError: the queries, or what the layer asks for, do not go with the storage.
        """
        shape = (len(self.token_ids), query.shape[1], self.storage.head_dim)
        _check("queries", query, shape, self.storage.dtype)
        if query.stride(2) != 1:
            query = query.contiguous()
        out = query.new_empty(query.shape)
        self.storage.attend(layer, query.shape[1], features)(query, self.plan, out)
        return out


def _check(name: str, rows: Tensor, shape: tuple[int, ...], dtype: torch.dtype) -> None:
    """Check that transformers hands over what kernels expect, because these go by addresses."""
    if rows.shape != shape or rows.dtype != dtype:
        raise ValueError(
            f"{name} are {tuple(rows.shape)} of {rows.dtype}, expected {shape} of {dtype}: "
            "not served"
        )


class CpuPlanner:
    """Plans the passes of one model.

    Args:
        storage: where its keys and values are.
        windows: of each layer, None where a row sees all positions before it.
    """

    def __init__(self, storage: LaneStorage, windows: Sequence[int | None]) -> None:
        self.storage = storage
        self._windows = tuple(windows)

    def __call__(self, sequences: Sequence[SequenceRows]) -> CpuPass:
        """Plan the pass of `sequences`, each of another session, for the layers."""
        size = self.storage.block_size
        token_ids: list[int] = []
        slots: list[int] = []
        positions: list[int] = []
        kept: list[int] = []
        tasks: list[int] = []
        block_ids: list[int] = []
        for sequence in sequences:
            first_row, start, count = len(token_ids), sequence.start, len(sequence.token_ids)
            for first, num_rows in self._cut(count):
                tasks += (first_row + first, num_rows, start + first, len(block_ids))
            token_ids += sequence.token_ids
            own = range(start, start + count)
            blocks = sequence.table.block_ids[: sequence.num_blocks_read(size)]
            slots += sequence.slots(start, start + count, size)
            positions += own
            kept += range(first_row + count - sequence.num_logits, first_row + count)
            block_ids += blocks
        # One tensor for all: each that is made costs as much as a norm.
        shared = further_slots(sequences, size)
        parts = (token_ids, slots, positions, kept, tasks, block_ids, *shared)
        numbers = array("q", chain.from_iterable(parts))
        whole = torch.frombuffer(numbers, dtype=torch.int64).split([len(part) for part in parts])
        return CpuPass(
            storage=self.storage,
            token_ids=whole[0],
            slots=StorePlan(whole[1], whole[6], whole[7]),
            positions=whole[2],
            kept=whole[3],
            plan=AttendPlan(tasks=whole[4], block_ids=whole[5]),
            windows=self._windows,
        )

    def _cut(self, num_rows: int) -> list[tuple[int, int]]:
        """Return first row and number of rows of each task, as even as can be."""
        if num_rows <= self.storage.task_rows:
            return [(0, num_rows)]
        num_tasks = -(-num_rows // self.storage.task_rows)
        size = -(-num_rows // num_tasks)
        return [(first, min(size, num_rows - first)) for first in range(0, num_rows, size)]
