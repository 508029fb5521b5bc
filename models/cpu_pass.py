"""One ragged pass for the compiled CPU kernels: where keys lie, and who attends to what.

`PagedPass` and its storage are the same for torch's own operations. Here a key head's tokens of a
block lie side by side for each of its numbers, so that scores of neighbouring keys are computed
together, without a sum across a vector.

Shape letters: R rows, H query heads, K key heads, D head size, B tokens of a block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from models.attention_features import AttentionFeatures
from models.cpu_kernels import Attend, AttendPlan, LayerKeys, Scratch, Store, task_rows
from models.kv_storage import KVBlocks, KVSizes
from models.sequence_rows import SequenceRows


class LaneStorage(KVBlocks):
    """Keys and values of all layers, and the kernels that write and read them.

    Args:
        sizes: how much there is.
        num_heads: H.
        num_threads: threads of a kernel.
    """

    def __init__(self, sizes: KVSizes, num_heads: int, num_threads: int) -> None:
        super().__init__(sizes, (sizes.num_heads, sizes.head_dim, sizes.block_size))
        shape = (-1, sizes.num_heads, sizes.block_size, sizes.head_dim)
        self.layers = [LayerKeys(keys, values.view(shape)) for keys, values in self.blocks]
        self.num_threads = num_threads
        self._num_heads = num_heads
        num_groups = num_heads // sizes.num_heads
        self._scratch = Scratch.for_attention(
            num_threads, num_groups, sizes.head_dim, sizes.block_size
        )
        self._stores: dict[int, Store] = {}
        self._attends: dict[int, tuple[AttentionFeatures, Attend]] = {}

    def store(self, layer: int) -> Store:
        """What stores keys and values in a layer."""
        if layer not in self._stores:
            self._stores[layer] = Store(self.layers[layer], self.num_threads)
        return self._stores[layer]

    def attend(self, layer: int, features: AttentionFeatures) -> Attend:
        """What attends in a layer, which always asks for the same."""
        found = self._attends.get(layer)
        if found is None or not found[0].is_like(features):
            made = Attend(self.layers[layer], self._num_heads, features, self._scratch)
            found = self._attends[layer] = (features, made)
        return found[1]


@dataclass(frozen=True, slots=True)
class CpuPass:
    """Everything the layers need to know about one pass."""

    storage: LaneStorage
    slots: Tensor  # [R] int64 of each row's key and value
    positions: Tensor  # [R] int64
    plan: AttendPlan
    windows: tuple[int | None, ...]  # of each layer

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store the rows' keys and values [K, R, D]."""
        self.storage.store(layer)(key, value, self.slots)

    def attend(self, layer: int, query: Tensor, features: AttentionFeatures) -> Tensor:
        """Attention of rows `query` [R, H, D] to the stored keys of their sessions, [R, H, D]."""
        out = query.new_empty(query.shape)
        attend = self.storage.attend(layer, features)
        attend(query.data_ptr(), query.stride(0), query.stride(1), self.plan, out)
        return out


class CpuPlanner:
    """Plans the passes of one model.

    Args:
        storage: where its keys and values are.
        num_groups: the query heads per key head.
        windows: of each layer, None where a row sees all positions before it.
    """

    def __init__(
        self, storage: LaneStorage, num_groups: int, windows: Sequence[int | None]
    ) -> None:
        self.storage = storage
        self._task_rows = task_rows(num_groups)
        self._windows = tuple(windows)

    def __call__(self, sequences: Sequence[SequenceRows]) -> CpuPass:
        """What the layers need to know of a pass of `sequences`, each of another session."""
        size = self.storage.block_size
        slots: list[int] = []
        positions: list[int] = []
        block_ids: list[int] = []
        tasks: list[tuple[int, int, int, int]] = []
        for sequence in sequences:
            for first, count in self._cut(len(sequence.token_ids)):
                row = len(slots) + first
                tasks.append((row, count, sequence.start + first, len(block_ids)))
            own = range(sequence.start, sequence.start + len(sequence.token_ids))
            blocks = sequence.table.block_ids[: sequence.num_blocks_read(size)]
            slots.extend(blocks[p // size] * size + p % size for p in own)
            positions.extend(own)
            block_ids.extend(blocks)
        return CpuPass(
            storage=self.storage,
            slots=torch.tensor(slots),
            positions=torch.tensor(positions),
            plan=AttendPlan(tasks, block_ids),
            windows=self._windows,
        )

    def _cut(self, num_rows: int) -> list[tuple[int, int]]:
        """First row and number of rows of each task, as even as can be."""
        num_tasks = -(-num_rows // self._task_rows)
        size = -(-num_rows // num_tasks)
        return [(first, min(size, num_rows - first)) for first in range(0, num_rows, size)]
