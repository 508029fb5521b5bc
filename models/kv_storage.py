"""Where keys and values of all layers lie: one tensor, cut into the blocks of `kv_cache`.

`kv_cache` says which block belongs to whom, this module only holds what is in them.
"""

from __future__ import annotations

import torch
from torch import Tensor


class KVStorage:
    """Keys and values of all layers, in blocks. One block more than the pool: it stays zero.

    Args:
        num_layers: attention layers.
        num_blocks: blocks of the pool.
        block_size: tokens per block.
        num_heads: key heads.
        head_dim: size of a head.
        dtype: of keys and values.
        device: where they live.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self.num_heads = num_heads
        self.head_dim = head_dim
        self.num_blocks_padded = num_blocks + 1
        self.null_block = num_blocks
        shape = (num_layers, 2, num_heads, self.num_blocks_padded, block_size, head_dim)
        self._blocks = torch.zeros(shape, dtype=dtype, device=device)
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
