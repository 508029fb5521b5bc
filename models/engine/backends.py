"""Which back-end computes a model's passes here: decided once, when the model is loaded."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from models.attention.backend import AttentionBackend
from models.attention.gather import GatherBackend
from models.checkpoint.loader import Checkpoint
from models.config import EngineConfig
from models.cpu import setup as cpu
from models.gpu import setup as gpu
from models.kv.storage import KVSizes, KVStorage


@dataclass(frozen=True, slots=True)
class Placed:
    """A model that is ready to compute passes."""

    packed: cpu.PackedModel
    backend: AttentionBackend


def place(
    checkpoint: Checkpoint, config: EngineConfig, num_blocks: int, *, is_shared: bool
) -> Placed:
    """Lay out the weights, choose the back-end and allocate its storage.

    Args:
        checkpoint: just loaded; its linear layers may be taken out of it.
        config: what it was loaded by.
        num_blocks: KV blocks of the pool.
        is_shared: whether other ranks hold parts of the model.

    Raises:
        ValueError: the config insists on a kernel that is not to be had.
    """
    sizes = KVSizes(
        num_layers=checkpoint.num_layers,
        num_blocks=num_blocks,
        block_size=config.block_size,
        num_heads=checkpoint.num_key_heads,
        head_dim=checkpoint.head_dim,
        dtype=getattr(torch, config.dtype),
        device=torch.device(config.device),
    )
    kernel = gpu.choose_kernel(config, checkpoint)
    has_kernels = cpu.uses_kernels(config, checkpoint.head_dim)
    packed = cpu.pack(checkpoint.model, config, has_kernels=has_kernels, is_shared=is_shared)
    windows = checkpoint.windows
    backend: AttentionBackend
    if kernel is not None:
        backend = gpu.make_backend(config, checkpoint, kernel, sizes, packed.forward)
    elif has_kernels:
        backend = cpu.make_backend(packed.forward, sizes, checkpoint.num_heads, windows)
    else:
        num_groups = checkpoint.num_heads // checkpoint.num_key_heads
        backend = GatherBackend(packed.forward, KVStorage(sizes), num_groups, windows)
    return Placed(packed, backend)
