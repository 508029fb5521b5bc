"""Whether a model is served by a paged attention kernel or by gathering, and with which graphs."""

from __future__ import annotations

import logging

import torch

from models.attention.backend import ModelForward
from models.checkpoint.loader import Checkpoint
from models.config import EngineConfig
from models.gpu.buckets import MAX_GRAPH_ROWS, BucketPlan
from models.gpu.forward import PagedBackend
from models.gpu.graphs import CudaGraphs, EagerGraphs, GraphBackend
from models.gpu.kernel import VarlenKernel
from models.gpu.probe import AttentionSizes, NoKernel, find_kernel, torch_features
from models.gpu.reference import reference_kernel
from models.kv.pages import PageStorage
from models.kv.storage import KVSizes

_MIB = 1 << 20

_logger = logging.getLogger(__name__)


def choose_kernel(config: EngineConfig, checkpoint: Checkpoint) -> VarlenKernel | None:
    """The kernel to serve the checkpoint with; None: its keys are gathered.

    Raises:
        ValueError: the config insists on a kernel, and there is none; the message says why.
    """
    device = torch.device(config.device)
    if config.attention == "reference":
        return None
    if getattr(checkpoint.model.config.get_text_config(), "attn_logit_softcapping", None):
        if config.attention == "varlen":
            raise ValueError("attention is 'varlen', but the model soft-caps its scores")
        return None
    if device.type != "cuda":
        return reference_kernel() if config.attention == "varlen" else None
    try:
        kernel = find_kernel(torch_features(device), _sizes(config, checkpoint), device)
    except NoKernel as error:
        if config.attention == "varlen":
            raise ValueError(f"attention is 'varlen', but no kernel works here: {error}") from error
        _logger.warning("no paged attention kernel, keys are gathered: %s", error)
        return None
    _logger.info("paged attention by the %s kernel", kernel.name)
    return kernel


def make_backend(
    config: EngineConfig,
    checkpoint: Checkpoint,
    kernel: VarlenKernel,
    sizes: KVSizes,
    forward: ModelForward,
) -> PagedBackend:
    """The back-end with its storage and, where wanted, captured graphs."""
    storage = PageStorage(sizes)
    made = PagedBackend(forward, storage, kernel, config.max_model_len, checkpoint.windows)
    backend = _graph_backend(config)
    if backend is not None:
        plan = BucketPlan(min(config.max_num_batched_tokens, MAX_GRAPH_ROWS))
        made.capture(backend, plan, config.graph_memory_mib * _MIB)
    return made


def _graph_backend(config: EngineConfig) -> GraphBackend | None:
    if config.graphs == "eager":
        return EagerGraphs()
    # Ranks would have to record together, and only NCCL's collectives can be recorded.
    if config.graphs == "off" or config.tensor_parallel_size > 1:
        return None
    device = torch.device(config.device)
    return CudaGraphs(device) if device.type == "cuda" else None


def _sizes(config: EngineConfig, checkpoint: Checkpoint) -> AttentionSizes:
    return AttentionSizes(
        num_heads=checkpoint.num_heads,
        num_key_heads=checkpoint.num_key_heads,
        head_dim=checkpoint.head_dim,
        block_size=config.block_size,
        dtype=getattr(torch, config.dtype),
    )
