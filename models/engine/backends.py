"""Chooses the back-end of a model's passes here: once, when the model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import nn

from models.attention.backend import AttentionBackend
from models.attention.gather import GatherBackend
from models.checkpoint.loader import Checkpoint
from models.config import EngineConfig
from models.cpu import setup as cpu
from models.engine.drafting_parts import OwnDrafting, make_drafting, read_parts
from models.gpu import setup as gpu
from models.gpu.decoder import MergedDecoder
from models.gpu.kernel import VarlenKernel
from models.gpu.products import own_products, refuse_own_products
from models.heads.config import num_key_layers
from models.kv.storage import KVSizes, KVStorage
from models.layers.family import can_take_apart
from models.parallel.layers import num_local_bytes

_NOTHING = OwnDrafting()


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A model whose weights are where they will be used.

    Attributes:
        packed: its layers.
        backend: makes the back-end that computes passes over so many KV blocks, which are its own.
        drafting: what drafts with the model.
    """

    packed: cpu.PackedModel
    backend: Callable[[int], AttentionBackend]
    drafting: OwnDrafting = _NOTHING


def lay_out(checkpoint: Checkpoint, config: EngineConfig, kernel: VarlenKernel | None) -> LaidOut:
    """Lay out the weights and choose the back-end.

    Args:
        checkpoint: just loaded; its linear layers may be taken out of it.
        config: what it was loaded by, with the size that blocks have.
        kernel: a paged one that was found here.
    """
    has_kernels = cpu.uses_kernels(config, checkpoint.head_dim)
    refuse_own_products(config, checkpoint, kernel)
    parts = read_parts(checkpoint, config)
    packed = None
    if kernel is not None:
        packed = _merged(checkpoint, config)
    if packed is None:
        is_shared = checkpoint.ranks is not None
        packed = cpu.pack(checkpoint.model, config, has_kernels=has_kernels, is_shared=is_shared)
    forward = packed.forward
    drafting = make_drafting(parts, checkpoint, config, forward)
    packed = replace(packed, weight_bytes=packed.weight_bytes + drafting.num_bytes)
    windows = (*checkpoint.windows, *drafting.windows)

    def backend(num_blocks: int) -> AttentionBackend:
        sizes = _kv_sizes(checkpoint, config, num_blocks)
        if kernel is not None:
            return gpu.make_backend(config, checkpoint, kernel, sizes, forward)
        if has_kernels:
            return cpu.make_backend(forward, sizes, checkpoint.num_heads, windows, drafting.layer)
        num_groups = checkpoint.num_heads // checkpoint.num_key_heads
        return GatherBackend(forward, KVStorage(sizes), num_groups, windows)

    return LaidOut(packed, backend, drafting)


def _merged(checkpoint: Checkpoint, config: EngineConfig) -> cpu.PackedModel | None:
    """Return a model around a paged kernel in few operations; None if its layers are not known."""
    model = checkpoint.model
    own = own_products(config, has_scales=checkpoint.has_scales)
    if (config.quantization and own is None) or not can_take_apart(model):
        return None
    weight_bytes = num_local_bytes(model)
    if own is None:
        make_linear = make_head = cpu.linear_maker(model, config)
    else:
        make_linear, make_head = own.make_linear, own.make_head
    decoder = MergedDecoder(model, config.max_model_len, make_linear, make_head)
    if config.quantization:
        weight_bytes = num_local_bytes(nn.ModuleList([model, *decoder.products()]))
    return cpu.PackedModel(decoder, weight_bytes)


def _kv_sizes(checkpoint: Checkpoint, config: EngineConfig, num_blocks: int) -> KVSizes:
    return KVSizes(
        num_layers=checkpoint.num_layers,
        num_head_layers=num_key_layers(config.heads),
        num_blocks=num_blocks,
        block_size=config.block_tokens,
        num_heads=checkpoint.num_key_heads,
        head_dim=checkpoint.head_dim,
        dtype=getattr(torch, config.dtype),
        device=torch.device(config.device),
    )
