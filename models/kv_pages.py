"""Keys and values of all layers as pages: the layout that paged GPU kernels read in place.

It holds what `KVStorage` holds and is written through the same calls, but a page is a block's
tokens with all heads of each, [num_pages, block_size, K, D], where `KVStorage` keeps the tokens of
one head together, which suits products on a CPU. Which of the two a model has is decided once,
with its attention kernel. `kv_cache` says which block belongs to whom.
"""

from __future__ import annotations

import torch
from torch import Tensor

from models.device_copy import to_device
from models.kv_storage import KVSizes


class PageStorage:
    """Keys and values of all layers, in pages. One page more than the pool has blocks.

    That page, the null block, fills up block tables and takes the keys of padded rows: what is in
    it is finite and concerns nobody.
    """

    def __init__(self, sizes: KVSizes) -> None:
        self.block_size = sizes.block_size
        self.num_heads = sizes.num_heads
        self.head_dim = sizes.head_dim
        self.null_block = sizes.num_blocks
        shape = (
            *(sizes.num_layers, 2, sizes.num_blocks + 1),
            *(sizes.block_size, sizes.num_heads, sizes.head_dim),
        )
        self._pages = torch.zeros(shape, dtype=sizes.dtype, device=sizes.device)
        self.pages = [(layer[0], layer[1]) for layer in self._pages]  # of each layer, for kernels
        self._slots = list(self._pages.flatten(2, 3))  # [2, slots, K, D] of each layer

    @property
    def device(self) -> torch.device:
        """Where keys and values live."""
        return self._pages.device

    @property
    def num_bytes(self) -> int:
        """Memory of all keys and values."""
        return self._pages.nbytes

    def write(self, layer: int, row_slots: Tensor, rows: Tensor) -> None:
        """Store keys and values `rows` [2, K, R, D] in the slots of their positions, [R]."""
        self._slots[layer].index_copy_(1, row_slots, rows.transpose(1, 2))

    def are_finite(self, block_ids: list[int]) -> bool:
        """As `KVStorage.are_finite`."""
        index = to_device(block_ids, self.device)
        return bool(self._pages[-1].index_select(1, index).isfinite().all())

    def clear_blocks(self, block_ids: list[int]) -> None:
        """Zero blocks that a session enters, so that no NaN of a former owner stays behind."""
        self._pages.index_fill_(2, to_device(block_ids, self.device), 0)
