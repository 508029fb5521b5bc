"""Lays a model out for a CPU, with the compiled kernels if they can serve it.

It is the only module that loads them, and numba with them. They are loaded only if they are used:
elsewhere neither has to be there.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from models.attention.backend import (
    AttentionBackend,
    DraftLayer,
    ModelForward,
    TransformersForward,
)
from models.config import GROUPED, EngineConfig
from models.cpu.quantizer import Quantizer
from models.heads.mtp import MtpParts
from models.kv.storage import KVSizes
from models.layers.experts import make_experts_rowwise
from models.layers.family import can_take_apart
from models.layers.grouped import GroupedEmbedding, GroupedLinear
from models.layers.groups import Bits, GroupedWeight
from models.layers.linear import MakeLinear, PackedLinear, can_pack, make_rowwise
from models.parallel.layers import num_local_bytes
from models.sampling.draws import use_on_cpu

_DTYPES = ("bfloat16", "float32")
_LANES = 16  # numbers the kernels work on together

_logger = logging.getLogger(__name__)


def uses_kernels(config: EngineConfig, head_dim: int) -> bool:
    """Return whether they serve a model with heads of `head_dim`; if not, torch's operations do."""
    if torch.device(config.device).type != "cpu" or config.attention != "auto":
        return False
    reason = _what_is_missing(config, head_dim)
    if reason is not None:
        _logger.warning("no compiled kernels, torch's own operations are used: %s", reason)
    return reason is None


@dataclass(frozen=True, slots=True)
class PackedModel:
    """A model whose weights are laid out for this machine, and what they take."""

    forward: ModelForward
    weight_bytes: int  # this rank's, quantised if asked, before packing


def pack(
    model: PreTrainedModel, config: EngineConfig, *, has_kernels: bool, is_shared: bool
) -> PackedModel:
    """Lay out the linear layers for a CPU, in place; the weights they had are freed.

    The model stays as it is on other devices, and if there is no product that keeps a row's bits.

    Args:
        model: loaded, with plain linear layers.
        config: what it was loaded by.
        has_kernels: whether compiled ones serve it (`uses_kernels`).
        is_shared: ranks share it, and this is one's part: its layers are not taken apart.
    """
    weight_bytes = num_local_bytes(model)
    make_linear = linear_maker(model, config)
    if make_linear is None:
        return PackedModel(TransformersForward(model), weight_bytes)
    forward = _fuse(model, config, make_linear) if has_kernels and not is_shared else None
    if forward is None:
        if not is_shared:
            make_experts_rowwise(model, make_linear)
        make_rowwise(model, make_linear)
        forward = TransformersForward(model)
    if isinstance(make_linear, Quantizer):
        left = [module for module in model.modules() if isinstance(module, GroupedEmbedding)]
        weight_bytes = num_local_bytes(model) + make_linear.num_bytes
        weight_bytes += sum(module.stored.num_bytes for module in left)
    return PackedModel(forward, weight_bytes)


def linear_maker(model: PreTrainedModel, config: EngineConfig) -> MakeLinear | None:
    """Return the function that makes a linear layer of weight and bias; None to keep layers.

    Raises:
        ValueError: weights of few bits are asked for, and there is no product for them here.
    """
    reason, bits, stored = _why_not_compiled(config), _bits(config), _stored_bits(model)
    if reason is None:
        from models.cpu.product import KernelLinear

        return KernelLinear if bits is None and not stored else Quantizer(KernelLinear, bits)
    if bits is not None:
        raise ValueError(f"quantization {config.quantization} needs the compiled kernels: {reason}")
    if stored:
        raise ValueError(f"weights in groups need the compiled kernels: {reason}")
    can = model.device.type == "cpu" and can_pack(model.dtype)
    return PackedLinear if can else None


def _fuse(
    model: PreTrainedModel, config: EngineConfig, make_linear: MakeLinear
) -> ModelForward | None:
    """Take the model apart; return None if its layers are not known."""
    from models.cpu import ops, product
    from models.cpu.fused_decoder import FusedDecoder, table_bits
    from models.cpu.kernels.compiling import compile_together

    if not can_take_apart(model):
        return None
    table = table_bits(model, make_linear)
    kinds: set[Bits | None] = {*_stored_bits(model), *([] if table is None else [table])}
    if any(type(module) is nn.Linear for module in model.modules()):
        kinds.add(_bits(config))
    multiply = [
        kernel
        for bits in kinds
        for kernel in product.kernels_of(model.dtype, bits, model.config.hidden_size)
    ]
    unpack = [] if table is None else [product.unpack_kernel(model.dtype, table)]
    compile_together([*dict.fromkeys(multiply), *unpack, *ops.kernels(model.dtype)])
    threads = torch.get_num_threads()
    return FusedDecoder(model, config.max_model_len, threads, make_linear)


def fuse_mtp(
    parts: MtpParts,
    output: Tensor | GroupedWeight,
    forward: ModelForward,
    window: int | None,
    make_linear: MakeLinear | None,
) -> DraftLayer | None:
    """Return an MTP head behind a model that was taken apart; None if it was not.

    Args:
        parts: of the head; it loses its linear layers.
        output: [V, F] the weight of the model's output layer.
        forward: the model as it was laid out.
        window: of the layer's attention.
        make_linear: that made its products.
    """
    if make_linear is None or isinstance(forward, TransformersForward):
        return None
    from models.cpu.fused_decoder import FusedDecoder
    from models.cpu.fused_mtp import FusedMtp

    assert isinstance(forward, FusedDecoder), "nothing else keeps states on a CPU"
    return FusedMtp(parts, output, forward, window, make_linear)


def fuse_exit(forward: ModelForward, num_layers: int) -> DraftLayer | None:
    """Return the first layers of a model that was taken apart, as a drafter; None if it was not."""
    if isinstance(forward, TransformersForward):
        return None
    from models.cpu.fused_decoder import FusedDecoder
    from models.cpu.fused_exit import FusedExit

    assert isinstance(forward, FusedDecoder), "nothing else runs on a CPU"
    return FusedExit(forward, num_layers)


def make_backend(
    forward: ModelForward,
    sizes: KVSizes,
    num_heads: int,
    windows: tuple[int | None, ...],
    layer: DraftLayer | None = None,
) -> AttentionBackend:
    """Make kernels for a model with `num_heads` query heads, and the storage they read.

    A `layer` that drafts with the model reads it too.
    """
    from models.cpu.backend import KernelBackend
    from models.cpu.batch import LaneStorage
    from models.cpu.draw import draw_by_terms
    from models.cpu.fused_exit import FusedExit
    from models.cpu.fused_mtp import FusedMtp

    use_on_cpu(draw_by_terms)
    storage = LaneStorage(sizes, num_heads, torch.get_num_threads())
    if isinstance(layer, FusedMtp | FusedExit):
        layer.use(storage)
    return KernelBackend(forward, storage, windows)


def _stored_bits(model: PreTrainedModel) -> set[Bits]:
    """Return the bits of the weights that came in groups; empty: none did."""
    return {module.stored.bits for module in model.modules() if isinstance(module, GroupedLinear)}


def _bits(config: EngineConfig) -> Bits | None:
    """Return the bits that weights are kept at in groups; None: they are kept as they are."""
    return GROUPED.get(config.quantization or "")


def _what_is_missing(config: EngineConfig, head_dim: int) -> str | None:
    if config.block_tokens % _LANES:
        return f"block_size is {config.block_tokens}, no multiple of {_LANES}"
    if head_dim % _LANES:
        return f"the model's heads have {head_dim} numbers, no multiple of {_LANES}"
    return _why_not_compiled(config)


def _why_not_compiled(config: EngineConfig) -> str | None:
    """Say why products are torch's own operations; None: they are compiled."""
    if torch.device(config.device).type != "cpu" or config.attention != "auto":
        return f"device is {config.device}, attention is {config.attention}"
    if config.dtype not in _DTYPES:
        return f"dtype is {config.dtype}, they are for {' and '.join(_DTYPES)}"
    try:
        import numba  # noqa: F401
    except ImportError as error:
        return f"numba cannot be imported: {error}"
    return None
