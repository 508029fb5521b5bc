"""The KV cache that vLLM laid out, by block."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from models.device import to_device


class VllmStorage:
    """Implements `BlockStorage`.

    Args:
        caches: of each layer, as vLLM's attention reads it.
        num_blocks: that each has.

    Raises:
        ValueError: a layer's blocks do not come first.
    """

    def __init__(self, caches: Mapping[str, Tensor], num_blocks: int) -> None:
        for name, cache in caches.items():
            if len(cache) != num_blocks:
                raise ValueError(
                    f"vLLM keeps {name} as {list(cache.shape)}, expected {num_blocks} blocks first"
                )
        # Layers may share their keys.
        self.layers = [*{cache.data_ptr(): cache for cache in caches.values()}.values()]

    def are_finite(self, block_ids: list[int]) -> bool:
        """See `BlockStorage`; the last layer tells. What is kept in 8 bits counts as finite."""
        last = self.layers[-1]
        index = to_device(block_ids, last.device)
        return bool(last.index_select(0, index).isfinite().all())

    def copy_blocks(self, sources: list[int], targets: list[int]) -> None:
        """See `BlockStorage`."""
        device = self.layers[0].device
        taken, given = to_device(sources, device), to_device(targets, device)
        for layer in self.layers:
            layer.index_copy_(0, given, layer.index_select(0, taken))

    def clear_blocks(self, block_ids: list[int], *, of_heads: bool = False) -> None:
        """See `BlockStorage`; no layer of these drafts."""
        index = to_device(block_ids, self.layers[0].device, torch.int64)
        for layer in self.layers:
            layer.index_fill_(0, index, 0)
