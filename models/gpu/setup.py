"""Chooses a paged attention kernel or gathering for a model, and its graphs."""

from __future__ import annotations

import logging
from collections.abc import Callable

import torch
from torch import Tensor

from models.attention.backend import ModelForward
from models.checkpoint.loader import Checkpoint
from models.config import GPU_BLOCKS, EngineConfig
from models.gpu.buckets import MAX_GRAPH_ROWS, BucketPlan
from models.gpu.forward import PagedBackend
from models.gpu.graphs import Agree, CudaGraphs, EagerGraphs, GraphBackend, GraphTerms
from models.gpu.kernel import VarlenKernel
from models.gpu.probe import AttentionSizes, NoKernel, find_kernel, torch_features
from models.gpu.reference import reference_kernel
from models.kv.pages import PageStorage
from models.kv.storage import KVSizes
from models.torch_library import has_kernels

_MIB = 1 << 20

_logger = logging.getLogger(__name__)


def choose_kernel(config: EngineConfig, checkpoint: Checkpoint) -> tuple[VarlenKernel | None, int]:
    """Return the kernel that serves the checkpoint, and the tokens of its blocks.

    None means that its keys are gathered, by any back-end.

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


def make_backend(
    config: EngineConfig,
    checkpoint: Checkpoint,
    kernel: VarlenKernel,
    sizes: KVSizes,
    forward: ModelForward,
) -> PagedBackend:
    """Return the back-end with its storage, without graphs."""
    return PagedBackend(
        forward, PageStorage(sizes), kernel, config.max_model_len, checkpoint.windows
    )


def capture_graphs(
    backend: PagedBackend, config: EngineConfig, agree: Agree
) -> GraphBackend | None:
    """Capture what graphs the config wants, within the memory it gives them.

    Args:
        backend: that is to replay them.
        config: of the engine.
        agree: whether all ranks say so.

    Returns:
        What captured them; None: the config wants none.
    """
    graphs = _graph_backend(config)
    if graphs is not None:
        max_rows = min(config.max_num_batched_tokens, MAX_GRAPH_ROWS)
        plan = BucketPlan(max_rows, max_len=config.max_model_len)
        backend.capture(graphs, plan, GraphTerms(config.graph_memory_mib * _MIB, agree))
    return graphs


def capture_chains(
    backend: PagedBackend,
    config: EngineConfig,
    graphs: GraphBackend,
    finish: Callable[[Tensor], Tensor],
    vocab_size: int,
) -> None:
    """Capture draft steps with their draws, in what the passes' graphs have left of the memory.

    Args: as for `PagedBackend.capture_chains`.
    """
    left = config.graph_memory_mib * _MIB - backend.graphs.num_bytes
    if has_kernels(torch.device(config.device)):
        backend.capture_chains(graphs, finish, vocab_size, GraphTerms(left))


def _graph_backend(config: EngineConfig) -> GraphBackend | None:
    if config.graphs == "eager":
        return EagerGraphs()
    device = torch.device(config.device)
    return CudaGraphs(device) if config.graphs == "auto" and device.type == "cuda" else None


def attention_sizes(
    config: EngineConfig, *, num_heads: int, num_key_heads: int, head_dim: int
) -> list[AttentionSizes]:
    """Return the sizes that a kernel may have, the best first: they differ in their pages."""
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
