"""Stores keys and values of all layers in one tensor, cut into the blocks of `block_pool`.

`block_pool` assigns blocks to sessions; this module only holds their contents.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from models.device import to_device


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSizes:
    """The sizes of the KV storage, for any layout."""

    num_layers: int  # attention layers of the model
    num_head_layers: int = 0  # layers of the heads that draft with it, behind these
    num_blocks: int  # blocks of the pool
    block_size: int  # tokens
    num_heads: int  # key heads
    head_dim: int
    dtype: torch.dtype
    device: torch.device


class BlockStorage(Protocol):
    """The operations on the blocks of any layout that runners ask for."""

    def are_finite(self, block_ids: list[int]) -> bool:
        """Return whether these blocks, all rows of which are written, hold finite numbers only."""
        ...

    def copy_blocks(self, sources: list[int], targets: list[int]) -> None:
        """Copy whole blocks; what they hold before, also where a target is a source."""
        ...

    def clear_blocks(self, block_ids: list[int], *, of_heads: bool = False) -> None:
        """Zero blocks that a session enters; `of_heads`: in the layers of what drafts."""
        ...


class KVBlocks:
    """Keys and values of all layers, in blocks, and one block more than the pool, `null_block`.

    Args:
        sizes: how much there is.
        block_shape: the numbers of one block's keys, in the order of the layout.

    Attributes:
        blocks: of each layer its keys and its values, [blocks, *block_shape].
    """

    def __init__(self, sizes: KVSizes, block_shape: tuple[int, int, int]) -> None:
        self.block_size = sizes.block_size
        self.num_heads = sizes.num_heads
        self.head_dim = sizes.head_dim
        self.null_block = sizes.num_blocks
        self._num_layers = sizes.num_layers
        shape = (sizes.num_layers + sizes.num_head_layers, 2, sizes.num_blocks + 1, *block_shape)
        self._all = torch.zeros(shape, dtype=sizes.dtype, device=sizes.device)
        self.blocks = [(layer[0], layer[1]) for layer in self._all]

    @property
    def device(self) -> torch.device:
        """The device of keys and values."""
        return self._all.device

    @property
    def dtype(self) -> torch.dtype:
        """The type of keys and values."""
        return self._all.dtype

    def are_finite(self, block_ids: list[int]) -> bool:
        """Return whether these blocks, all rows of which are written, hold no NaN and no infinity.

        The last layer tells: what is not finite in a row stays in it from layer to layer. If ranks
        share the model, this rank's heads tell, because rows are summed over the ranks.
        """
        index = to_device(block_ids, self.device)
        last = self._all[self._num_layers - 1]
        return bool(last.index_select(1, index).isfinite().all())

    def copy_blocks(self, sources: list[int], targets: list[int]) -> None:
        """Copy whole blocks; what they hold before, also where a target is a source."""
        held = {source: self._all[:, :, source].clone() for source in set(sources)}
        for source, target in zip(sources, targets, strict=True):
            self._all[:, :, target].copy_(held[source])

    def clear_blocks(self, block_ids: list[int], *, of_heads: bool = False) -> None:
        """Zero blocks that a session enters, so that no NaN of a former owner stays behind.

        Args:
            block_ids: of them.
            of_heads: in the layers of what drafts, whose rows come earlier; else in the model's.
        """
        layers = self._all[self._num_layers :] if of_heads else self._all[: self._num_layers]
        layers.index_fill_(2, to_device(block_ids, self.device), 0)


class KVStorage(KVBlocks):
    """The layout that suits products on a CPU; its null block stays zero.

    A block's tokens lie together head by head, [blocks, K, block_size, D]. So one batched product
    multiplies any stretch of blocks in its place.
    """

    def __init__(self, sizes: KVSizes) -> None:
        super().__init__(sizes, (sizes.num_heads, sizes.block_size, sizes.head_dim))
        self._rows = list(self._all.flatten(2, 4))  # [2, blocks * K * block_size, D] of a layer

    def row_index(self, slots: list[int]) -> Tensor:
        """Return the index that `write` needs for rows at these slots, block by block: [K * R]."""
        size, num_heads = self.block_size, self.num_heads
        firsts = [slot // size * size * num_heads + slot % size for slot in slots]
        heads = torch.arange(num_heads, device=self.device) * size
        return (heads[:, None] + to_device(firsts, self.device)).flatten()

    def write(self, layer: int, row_index: Tensor, rows: Tensor) -> None:
        """Store keys and values `rows` [2, K, R, D] where `row_index` of their slots says."""
        self._rows[layer].index_copy_(1, row_index, rows.flatten(1, 2))
