"""Which back-end computes a model's passes here: decided once, when the model is loaded."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import nn

from models.attention.backend import AttentionBackend, DraftLayer, ModelForward
from models.attention.early_exit import ExitForward
from models.attention.gather import GatherBackend
from models.checkpoint.loader import Checkpoint
from models.config import EngineConfig
from models.cpu import setup as cpu
from models.gpu import setup as gpu
from models.gpu.decoder import MergedDecoder
from models.gpu.kernel import VarlenKernel
from models.gpu.products import own_products, refuse_own_products
from models.heads.config import heads_kind, num_key_layers
from models.heads.medusa import MedusaHeads
from models.heads.medusa_folder import read_heads
from models.heads.mtp import MtpForward, MtpParts, read_mtp
from models.kv.storage import KVSizes, KVStorage
from models.layers.family import can_take_apart
from models.parallel.layers import num_local_bytes


@dataclass(frozen=True, slots=True)
class LaidOut:
    """A model whose weights are where they will be used.

    Attributes:
        packed: its layers.
        backend: makes the back-end that computes passes over so many KV blocks, which are its own.
        heads: that draft with the model, by the states of the pass before; None: there are none.
        draft_layer: that drafts with it, with keys of its own; None: there is none.
    """

    packed: cpu.PackedModel
    backend: Callable[[int], AttentionBackend]
    heads: MedusaHeads | None = None
    draft_layer: DraftLayer | None = None


def lay_out(
    checkpoint: Checkpoint, config: EngineConfig, kernel: VarlenKernel | None, *, is_shared: bool
) -> LaidOut:
    """Lay out the weights and choose the back-end.

    Args:
        checkpoint: just loaded; its linear layers may be taken out of it.
        config: what it was loaded by, with the size that blocks have.
        kernel: a paged one that was found here.
        is_shared: whether other ranks hold parts of the model.
    """
    has_kernels = cpu.uses_kernels(config, checkpoint.head_dim)
    refuse_own_products(config, checkpoint, kernel)
    heads, parts = _heads(checkpoint, config), _mtp_parts(checkpoint, config)
    # Before it is packed; ranks, which have no such head, keep it in parts.
    output = None if parts is None else checkpoint.model.get_output_embeddings().weight.detach()
    packed = None
    if kernel is not None:
        packed = _merged(checkpoint, config)
    if packed is None:
        packed = cpu.pack(checkpoint.model, config, has_kernels=has_kernels, is_shared=is_shared)
    forward, windows = packed.forward, checkpoint.windows
    layer: DraftLayer | None = None
    if parts is not None and output is not None:
        windows = (*windows, windows[-1])  # it is as the last one
        make_linear = cpu.linear_maker(checkpoint.model, config)
        layer = cpu.fuse_mtp(parts, output, forward, windows[-1], make_linear)
        layer = layer or MtpForward(parts, checkpoint.model, output)
    if config.early_exit is not None:
        layer = _first_layers(checkpoint, config.early_exit, forward)
    drafting = heads or layer
    if drafting is not None:
        if drafting is heads or parts is not None:
            forward.keep_hidden()
        packed = replace(packed, weight_bytes=packed.weight_bytes + drafting.num_bytes)

    def backend(num_blocks: int) -> AttentionBackend:
        sizes = _kv_sizes(checkpoint, config, num_blocks)
        if kernel is not None:
            return gpu.make_backend(config, checkpoint, kernel, sizes, forward)
        if has_kernels:
            return cpu.make_backend(forward, sizes, checkpoint.num_heads, windows, layer)
        num_groups = checkpoint.num_heads // checkpoint.num_key_heads
        return GatherBackend(forward, KVStorage(sizes), num_groups, windows)

    return LaidOut(packed, backend, heads, layer)


def _heads(checkpoint: Checkpoint, config: EngineConfig) -> MedusaHeads | None:
    """Before the model is taken apart: they may share the weight that gives its logits."""
    if config.heads is None or heads_kind(Path(config.heads)) != "medusa":
        return None
    model = checkpoint.model
    weights = read_heads(Path(config.heads), model.get_output_embeddings().weight)
    return MedusaHeads(weights, checkpoint.num_columns, cpu.linear_maker(model, config))


def _first_layers(checkpoint: Checkpoint, num_layers: int, forward: ModelForward) -> DraftLayer:
    if num_layers >= checkpoint.num_layers:
        raise ValueError(
            f"early_exit must be below the {checkpoint.num_layers} layers of the model, "
            f"got {num_layers}"
        )
    fused = cpu.fuse_exit(forward, num_layers)
    return fused or ExitForward(forward, checkpoint.model, num_layers)


def _mtp_parts(checkpoint: Checkpoint, config: EngineConfig) -> MtpParts | None:
    if config.heads is None or heads_kind(Path(config.heads)) != "mtp":
        return None
    return read_mtp(Path(config.heads), checkpoint.model)


def _merged(checkpoint: Checkpoint, config: EngineConfig) -> cpu.PackedModel | None:
    """A model around a paged kernel in few operations; None where its layers are not known."""
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
