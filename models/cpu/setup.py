"""How a model is laid out for a CPU, and whether its passes run on the compiled kernels.

The only module that loads them, and numba with them, and only where they are used: elsewhere
neither has to be there.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from models.attention.backend import AttentionBackend, ModelForward, TransformersForward
from models.config import EngineConfig
from models.kv.storage import KVSizes
from models.layers.experts import make_experts_rowwise
from models.layers.linear import PackedLinear, can_pack, make_rowwise
from models.layers.quantization import Quantizer
from models.parallel.layers import num_local_bytes

if TYPE_CHECKING:
    from models.cpu.fused_decoder import MakeLinear

_DTYPES = ("bfloat16", "float32")
_LANES = 16  # numbers the kernels work on together

_logger = logging.getLogger(__name__)


def uses_kernels(config: EngineConfig, head_dim: int) -> bool:
    """Whether they serve a model with heads of `head_dim`; if not, torch's own operations do."""
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
    weight_bytes: int  # of this rank, quantised where asked, before packing


def pack(
    model: PreTrainedModel, config: EngineConfig, *, has_kernels: bool, is_shared: bool
) -> PackedModel:
    """Lay out the linear layers for a CPU, in place; the weights they had are freed.

    On other devices, and where torch has no packed product, the model stays as it is.

    Args:
        model: loaded, with plain linear layers.
        config: what it was loaded by.
        has_kernels: whether compiled ones serve it (`uses_kernels`).
        is_shared: ranks share it, and this is one's part: its layers are not taken apart.
    """
    quantizer = None if config.quantization is None else Quantizer(getattr(torch, config.dtype))
    weight_bytes = num_local_bytes(model)
    forward: ModelForward = TransformersForward(model)
    if quantizer is not None or (model.device.type == "cpu" and can_pack(model.dtype)):
        make_linear = quantizer or PackedLinear
        fused = _fuse(model, config, make_linear) if has_kernels and not is_shared else None
        if fused is not None:
            forward = fused
        else:
            if not is_shared:
                make_experts_rowwise(model)
            make_rowwise(model, make_linear)
    if quantizer is not None:
        weight_bytes = num_local_bytes(model) + quantizer.num_bytes
    return PackedModel(forward, weight_bytes)


def _fuse(
    model: PreTrainedModel, config: EngineConfig, make_linear: MakeLinear
) -> ModelForward | None:
    """The model taken apart; None where its layers are not known."""
    from models.cpu.backend import FusedForward
    from models.cpu.fused_decoder import FusedDecoder, can_fuse

    if not can_fuse(model):
        return None
    threads = torch.get_num_threads()
    return FusedForward(FusedDecoder(model, config.max_model_len, threads, make_linear))


def make_backend(
    forward: ModelForward, sizes: KVSizes, num_heads: int, windows: tuple[int | None, ...]
) -> AttentionBackend:
    """Kernels for a model with `num_heads` query heads, and the storage they read."""
    from models.cpu.backend import KernelBackend
    from models.cpu.batch import LaneStorage

    storage = LaneStorage(sizes, num_heads, torch.get_num_threads())
    return KernelBackend(forward, storage, windows)


def _what_is_missing(config: EngineConfig, head_dim: int) -> str | None:
    if config.dtype not in _DTYPES:
        return f"dtype is {config.dtype}, they are for {' and '.join(_DTYPES)}"
    if config.block_size % _LANES:
        return f"block_size is {config.block_size}, no multiple of {_LANES}"
    if head_dim % _LANES:
        return f"the model's heads have {head_dim} numbers, no multiple of {_LANES}"
    try:
        import numba  # noqa: F401
    except ImportError as error:
        return f"numba cannot be imported: {error}"
    return None
