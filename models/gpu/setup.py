"""Whether a model is served by a paged attention kernel or by gathering, and with which graphs."""

from __future__ import annotations

import logging

import torch

from models.attention.backend import ModelForward
from models.checkpoint.loader import Checkpoint
from models.config import GPU_BLOCKS, EngineConfig
from models.gpu.buckets import MAX_GRAPH_ROWS, BucketPlan
from models.gpu.forward import PagedBackend
from models.gpu.fp8 import LEAST_CAPABILITY, fp8_linear, stored_linear
from models.gpu.graphs import Agree, CudaGraphs, EagerGraphs, GraphBackend, GraphTerms
from models.gpu.kernel import VarlenKernel
from models.gpu.probe import AttentionSizes, NoKernel, find_kernel, torch_features
from models.gpu.reference import reference_kernel
from models.kv.pages import PageStorage
from models.kv.storage import KVSizes
from models.layers.family import can_take_apart
from models.layers.linear import MakeLinear
from models.torch_library import has_kernels

_MIB = 1 << 20

_logger = logging.getLogger(__name__)


def choose_kernel(config: EngineConfig, checkpoint: Checkpoint) -> tuple[VarlenKernel | None, int]:
    """The kernel to serve the checkpoint with, and the tokens of a block that go with it.

    None: its keys are gathered, by whatever back-end.

    Raises:
        ValueError: the config insists on a kernel, and there is none; the message says why.
    """
    device = torch.device(config.device)
    gathered = None, _gathered_block(config)
    if config.attention == "reference":
        return gathered
    if getattr(checkpoint.model.config.get_text_config(), "attn_logit_softcapping", None):
        if config.attention == "varlen":
            raise ValueError("attention is 'varlen', but the model soft-caps its scores")
        return gathered
    if device.type != "cuda":
        return (reference_kernel() if config.attention == "varlen" else None), config.block_tokens
    try:
        sizes = attention_sizes(
            config,
            num_heads=checkpoint.num_heads,
            num_key_heads=checkpoint.num_key_heads,
            head_dim=checkpoint.head_dim,
        )
        kernel, found = find_kernel(torch_features(device), sizes, device)
    except NoKernel as error:
        if config.attention == "varlen":
            raise ValueError(f"attention is 'varlen', but no kernel works here: {error}") from error
        _logger.warning("no paged attention kernel, keys are gathered: %s", error)
        return gathered
    _logger.info("paged attention by the %s kernel, pages of %d", kernel.name, found.block_size)
    return kernel, found.block_size


def _gathered_block(config: EngineConfig) -> int:
    """Tokens of a block where keys are gathered: as few as auto would try."""
    is_open = config.block_size == "auto" and torch.device(config.device).type == "cuda"
    return min(GPU_BLOCKS) if is_open else config.block_tokens


def refuse_own_products(
    config: EngineConfig, checkpoint: Checkpoint, kernel: VarlenKernel | None
) -> None:
    """Refuse `batch_invariant` and fp8 where a model cannot have the products they need.

    Raises:
        ValueError: says what is missing.
    """
    device = torch.device(config.device)
    if device.type != "cuda" or not (config.batch_invariant or config.quantization == "fp8"):
        return
    key = "batch_invariant" if config.batch_invariant else "quantization fp8"
    missing = ""
    if kernel is None:
        missing = "a paged attention kernel, and none works here"
    elif config.batch_invariant and not has_kernels(device):
        missing = "Triton, which torch's builds for GPUs bring along"
    elif not config.batch_invariant and _capability(device) < LEAST_CAPABILITY:
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
    raise ValueError(f"{key} needs {missing}; leave it out")


def _capability(device: torch.device) -> tuple[int, int]:
    return torch.cuda.get_device_capability(device)


def linear_maker(config: EngineConfig, *, has_scales: bool = False) -> MakeLinear | None:
    """What makes the products of a model that is taken apart; None: nothing of ours.

    Args:
        config: of the engine, with the quantization of the checkpoint.
        has_scales: whether the checkpoint is stored in float8.
    """
    if config.quantization == "fp8":
        return stored_linear if has_scales else fp8_linear
    if not config.batch_invariant or torch.device(config.device).type != "cuda":
        return None
    from models.gpu.kernels.product import InvariantLinear

    return InvariantLinear


def make_backend(
    config: EngineConfig,
    checkpoint: Checkpoint,
    kernel: VarlenKernel,
    sizes: KVSizes,
    forward: ModelForward,
) -> PagedBackend:
    """The back-end with its storage, without graphs."""
    return PagedBackend(
        forward, PageStorage(sizes), kernel, config.max_model_len, checkpoint.windows
    )


def capture_graphs(backend: PagedBackend, config: EngineConfig, agree: Agree) -> None:
    """Capture what graphs the config wants, within the memory it gives them.

    Args:
        backend: that is to replay them.
        config: of the engine.
        agree: whether all ranks say so.
    """
    graphs = _graph_backend(config)
    if graphs is not None:
        plan = BucketPlan(min(config.max_num_batched_tokens, MAX_GRAPH_ROWS))
        backend.capture(graphs, plan, GraphTerms(config.graph_memory_mib * _MIB, agree))


def _graph_backend(config: EngineConfig) -> GraphBackend | None:
    if config.graphs == "eager":
        return EagerGraphs()
    device = torch.device(config.device)
    return CudaGraphs(device) if config.graphs == "auto" and device.type == "cuda" else None


def attention_sizes(
    config: EngineConfig, *, num_heads: int, num_key_heads: int, head_dim: int
) -> list[AttentionSizes]:
    """The sizes of a kernel that would do, the best first: they differ in their pages."""
    blocks = GPU_BLOCKS if config.block_size == "auto" else (config.block_size,)
    return [
        AttentionSizes(
            num_heads=num_heads,
            num_key_heads=num_key_heads,
            head_dim=head_dim,
            block_size=block_size,
            dtype=getattr(torch, config.dtype),
        )
        for block_size in blocks
    ]
