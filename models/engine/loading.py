"""Loads the model that a config names, by the engine that the config chooses.

    own   transformers' layers, or ours made of them, around our own kernels (`backends`)
    vllm  vLLM's layers and kernels in this process (`models/vllm`)

A runner knows no difference: sessions, blocks, masks and draws are above it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import torch

from models.attention.backend import AttentionBackend, ModelLayers
from models.checkpoint.loader import kv_bytes_per_token, load_checkpoint
from models.config import EngineConfig
from models.cpu.weight_memory import weights_together
from models.engine.backends import lay_out
from models.engine.drafting_parts import OwnDrafting
from models.engine.profiling import measured_share
from models.gpu import setup as gpu
from models.gpu.memory import CudaMemory
from models.heads.config import num_key_layers
from models.parallel.layers import num_local_weights
from models.parallel.ranks import TensorParallel
from models.text.vocabulary import DrawableIds


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedModel:
    """A model whose weights are in place, or a rank's part of it.

    Attributes:
        config: what it was loaded by, with the block size and quantization that it came to.
        num_columns: columns of the logits, padding included; ids that may be read.
        drawable: ids that may be sampled.
        eos_ids: ids that end a generation.
        kv_bytes_per_token: bytes of one token's keys and values, on this rank.
        weight_bytes: before packing; of this rank's part.
        bits_a_weight: on the average, scales included and what drafts left out; 0: unknown.
        layers: to look at, not to change.
        backend: makes the back-end that computes passes over so many KV blocks, which are its own.
        share_bytes: measures the bytes that `gpu_memory_utilization` leaves for KV on this rank.
        drafting: the drafter that works with the model.
    """

    config: EngineConfig
    num_columns: int
    drawable: DrawableIds
    eos_ids: tuple[int, ...]
    kv_bytes_per_token: int
    weight_bytes: int
    bits_a_weight: float
    layers: ModelLayers
    backend: Callable[[int], AttentionBackend]
    share_bytes: Callable[[], int]
    drafting: OwnDrafting


def load_model(config: EngineConfig, ranks: TensorParallel | None) -> LoadedModel:
    """Load the model of `config`, or this rank's part of it.

    Raises:
        ValueError: the checkpoint is missing, cannot be served, or is smaller than the limits; or
            the engine is not installed.
    """
    loaded = _load_own(config, ranks) if config.engine == "own" else _load_vllm(config, ranks)
    if ranks is not None:
        ranks.must_agree("block_size", loaded.config.block_tokens)
    return loaded


def _load_own(config: EngineConfig, ranks: TensorParallel | None) -> LoadedModel:
    checkpoint = load_checkpoint(config, ranks)
    kernel, block_size = gpu.choose_kernel(config, checkpoint)
    came_to = {"block_size": block_size, "quantization": checkpoint.quantization}
    config = config.model_copy(update=came_to)
    itemsize = getattr(torch, config.dtype).itemsize
    num_weights = num_local_weights(checkpoint.model)
    with weights_together():
        laid_out = lay_out(checkpoint, config, kernel)
    memory = partial(CudaMemory, torch.device(config.device))
    return LoadedModel(
        config=config,
        num_columns=checkpoint.num_columns,
        drawable=checkpoint.drawable,
        eos_ids=checkpoint.eos_ids,
        kv_bytes_per_token=kv_bytes_per_token(checkpoint, itemsize, num_key_layers(config.heads)),
        weight_bytes=laid_out.packed.weight_bytes,
        bits_a_weight=8
        * (laid_out.packed.weight_bytes - laid_out.drafting.num_bytes)
        / num_weights,
        layers=laid_out.packed.forward,
        backend=laid_out.backend,
        share_bytes=lambda: measured_share(config, memory(), laid_out, checkpoint.num_columns),
        drafting=laid_out.drafting,
    )


def _load_vllm(config: EngineConfig, ranks: TensorParallel | None) -> LoadedModel:
    from models.vllm.hooks import require_vllm

    require_vllm(config)  # before anything imports vLLM
    from models.vllm.model import VllmModel

    model = VllmModel(config, ranks)
    return LoadedModel(
        config=config.model_copy(update={"block_size": model.block_size}),
        num_columns=model.num_columns,
        drawable=model.drawable,
        eos_ids=model.eos_ids,
        kv_bytes_per_token=model.kv_bytes_per_token,
        weight_bytes=model.weight_bytes,
        bits_a_weight=8 * model.weight_bytes / max(1, model.num_weights),
        layers=model,
        backend=model.backend,
        share_bytes=model.share_bytes,
        drafting=OwnDrafting(),
    )
