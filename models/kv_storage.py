"""Where keys and values of all layers lie: one tensor, cut into the blocks of `kv_cache`.

`kv_cache` says which block belongs to whom, this module only holds what is in them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class KVSizes:
    """How much KV there is, whatever its layout."""

    num_layers: int  # attention layers
    num_blocks: int  # of the pool
    block_size: int  # tokens
    num_heads: int  # key heads
    head_dim: int
    dtype: torch.dtype
    device: torch.device


class KVStorage:
    """Keys and values of all layers, in blocks. One block more than the pool: it stays zero."""

    def __init__(self, sizes: KVSizes) -> None:
        self.block_size = sizes.block_size
        self.num_heads = sizes.num_heads
        self.head_dim = sizes.head_dim
        self.num_blocks_padded = sizes.num_blocks + 1
        self.null_block = sizes.num_blocks
        shape = (
            *(sizes.num_layers, 2, sizes.num_heads),
            *(self.num_blocks_padded, sizes.block_size, sizes.head_dim),
        )
        self._blocks = torch.zeros(shape, dtype=sizes.dtype, device=sizes.device)
        slots = self._blocks.flatten(3, 4)  # [layers, 2, K, slots, D]
        whole = self._blocks.flatten(4, 5).flatten(2, 3)  # [layers, 2, K * B, block_size * D]
        self.slots = list(slots)
        self.blocks = [(layer[0], layer[1]) for layer in whole]

    @property
    def device(self) -> torch.device:
        """Where keys and values live."""
        return self._blocks.device

    @property
    def num_bytes(self) -> int:
        """Memory of all keys and values."""
        return self._blocks.nbytes

    def write(self, layer: int, row_slots: Tensor, rows: Tensor) -> None:
        """Store keys and values `rows` [2, K, R, D] in the slots of their positions, [R]."""
        self.slots[layer].index_copy_(2, row_slots, rows)

    def are_finite(self, block_ids: list[int]) -> bool:
        """Whether these blocks, all rows of which are written, hold no NaN and no infinity.

        The last layer tells: what is not finite in a row stays in it from layer to layer. Of a
        model that ranks share, this rank's heads tell, because rows are summed over the ranks.
        """
        index = torch.tensor(block_ids, device=self.device)
        return bool(self._blocks[-1].index_select(2, index).isfinite().all())

    def clear_blocks(self, block_ids: list[int]) -> None:
        """Zero blocks that a session enters, so that no NaN of a former owner stays behind."""
        index = torch.tensor(block_ids, device=self.device)
        self._blocks.index_fill_(3, index, 0)
