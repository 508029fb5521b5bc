"""Whether a model's passes run on the compiled CPU kernels.

The only module that loads them, and numba with them, and only where they are used: elsewhere
neither has to be there.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import torch
from transformers import PreTrainedModel

from models.config import EngineConfig
from models.kv.storage import KVSizes

if TYPE_CHECKING:
    from models.cpu.batch import CpuPlanner
    from models.cpu.fused_decoder import FusedDecoder, MakeLinear

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


def fuse(
    model: PreTrainedModel, num_positions: int, make_linear: MakeLinear
) -> FusedDecoder | None:
    """The model's layers taken apart, for so many positions; None where they are not known."""
    from models.cpu.fused_decoder import FusedDecoder, can_fuse

    if not can_fuse(model):
        return None
    return FusedDecoder(model, num_positions, torch.get_num_threads(), make_linear)


def make_planner(
    sizes: KVSizes, num_heads: int, windows: tuple[int | None, ...], fused: FusedDecoder | None
) -> CpuPlanner:
    """Storage and plans for the passes of a model with `num_heads` query heads."""
    from models.cpu.batch import CpuPlanner, LaneStorage

    storage = LaneStorage(sizes, num_heads, torch.get_num_threads())
    if fused is not None:
        fused.use(storage)
    return CpuPlanner(storage, windows)


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
