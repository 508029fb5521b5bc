"""Keys and values of all layers as pages: the layout that paged GPU kernels read in place.

It holds the same as `KVStorage` and is written through the same calls. A page is a block's tokens
with all heads of each, [num_pages, block_size, K, D]. `KVStorage` keeps the tokens of one head
together, which suits products on a CPU. Which of the two a model has is decided once, with its
attention kernel. `block_pool` says which block belongs to whom.
"""

from __future__ import annotations

from torch import Tensor

from models.kv.storage import KVBlocks, KVSizes


class PageStorage(KVBlocks):
    """Keys and values of all layers, in pages. One page more than the pool has blocks.

    That page, the null block, fills up block tables and takes the keys of padded rows. Its content
    is finite and has no effect.
    """

    def __init__(self, sizes: KVSizes) -> None:
        super().__init__(sizes, (sizes.block_size, sizes.num_heads, sizes.head_dim))
        self._slots = list(self._all.flatten(2, 3))  # [2, slots, K, D] of each layer

    def slots(self, layer: int) -> tuple[Tensor, Tensor]:
        """Keys and values of a layer by slot, [slots, K, D]; both are to be written to."""
        keys, values = self._slots[layer]
        return keys, values

    def write(self, layer: int, row_slots: Tensor, rows: Tensor) -> None:
        """Store keys and values `rows` [2, K, R, D] in the slots of their positions, [R]."""
        self._slots[layer].index_copy_(1, row_slots, rows.transpose(1, 2))
