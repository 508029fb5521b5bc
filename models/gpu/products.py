"""The products of a model on a GPU where a key of the config asks for other than torch's.

One entry for each such key: how its layers are made, and what they need of the machine. They are
for models that `decoder.py` takes apart, around a paged attention kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.checkpoint.loader import Checkpoint
from models.config import EngineConfig
from models.gpu.fp8 import LEAST_CAPABILITY, fp8_linear, stored_linear
from models.gpu.kernel import VarlenKernel
from models.layers.family import can_take_apart
from models.layers.linear import MakeLinear, plain_linear
from models.layers.quantization import quantize_weight
from models.torch_library import has_kernels


@dataclass(frozen=True, slots=True)
class OwnProducts:
    """Products that are not torch's own.

    Attributes:
        key: of the config, which asks for them.
        make_linear: makes a layer of its weight and bias.
        make_head: the same for the one that gives the logits.
        needs_triton: whether they are kernels of ours.
        least_capability: of the GPU; None: any.
    """

    key: str
    make_linear: MakeLinear
    make_head: MakeLinear
    needs_triton: bool = False
    least_capability: tuple[int, int] | None = None


def own_products(config: EngineConfig, *, has_scales: bool = False) -> OwnProducts | None:
    """Return the products that the config asks for; None: torch's own.

    Args:
        config: of the engine, with the quantization of the checkpoint.
        has_scales: whether the checkpoint is stored in float8.
    """
    if config.quantization == "fp8":
        # Rounding leaves the head as it is; a published checkpoint says itself what it left whole.
        make: MakeLinear = stored_linear if has_scales else fp8_linear
        make_head: MakeLinear = stored_linear if has_scales else plain_linear
        return OwnProducts("quantization fp8", make, make_head, least_capability=LEAST_CAPABILITY)
    if torch.device(config.device).type != "cuda":
        return None
    if config.quantization == "int8":
        return OwnProducts("quantization int8", int8_linear, int8_linear, needs_triton=True)
    if config.batch_invariant:
        own = invariant_linear
        return OwnProducts("batch_invariant", own, own, needs_triton=True)
    return None


def refuse_own_products(
    config: EngineConfig, checkpoint: Checkpoint, kernel: VarlenKernel | None
) -> None:
    """Refuse products that the config asks for where a model cannot have them.

    Raises:
        ValueError: says what is missing.
    """
    wanted = own_products(config, has_scales=checkpoint.has_scales)
    device = torch.device(config.device)
    if wanted is None or device.type != "cuda":
        return
    missing = ""
    if kernel is None:
        missing = "a paged attention kernel, and none works here"
    elif wanted.needs_triton and not has_kernels(device):
        missing = "Triton's kernels, and none runs here: they need torch for GPUs and a C compiler"
    elif wanted.least_capability and _capability(device) < wanted.least_capability:
        missing = "a GPU of compute capability 8.9 or more (L4, RTX 40, H100)"
    elif not can_take_apart(checkpoint.model):
        kind = checkpoint.model.config.model_type
        missing = f"layers of Llama, Mistral, Qwen2 or Qwen3, and these are of {kind}"
    if not missing:
        return
    if checkpoint.has_scales:
        raise ValueError(
            f"model_path {config.model_path!r} is stored in float8, which needs {missing}; take "
            "the original checkpoint"
        )
    raise ValueError(f"{wanted.key} needs {missing}; leave it out")


def invariant_linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Return a layer whose rows do not depend on each other."""
    from models.gpu.kernels.product import InvariantLinear

    return InvariantLinear(weight, bias)


def int8_linear(weight: Tensor, bias: Tensor | None) -> nn.Module:
    """Return such a layer with weights rounded to 8 bits."""
    from models.gpu.kernels.product import InvariantLinear

    integers, scales = quantize_weight(weight)
    return InvariantLinear(integers, bias, scales)


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)
