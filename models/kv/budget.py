"""Computes the number of KV blocks: from tokens, bytes or a share of a GPU."""

from __future__ import annotations

from models.config import EngineConfig

_MIB = 1 << 20
# Bytes of a CUDA context, and of libraries beside torch's own memory (cuBLAS, NCCL). Estimated.
CONTEXT_BYTES = 768 * _MIB


def num_kv_blocks(config: EngineConfig, bytes_per_token: int, share_bytes: int = 0) -> int:
    """Blocks of the pool.

    Args:
        config: says in one of three ways how much memory there is.
        bytes_per_token: keys and values of all layers, on this rank.
        share_bytes: what `gpu_memory_utilization` leaves for them (`share_for_kv`).

    Raises:
        ValueError: the memory that was given does not hold one session of `max_model_len`.
    """
    if config.kv_cache_memory is not None:
        num_bytes = int(config.kv_cache_memory)
        given = f"kv_cache_memory: {num_bytes}"
    elif config.gpu_memory_utilization is not None:
        num_bytes = share_bytes
        given = f"gpu_memory_utilization: {config.gpu_memory_utilization:g} leaves {num_bytes}"
    else:
        return config.num_blocks
    num_blocks = max(0, num_bytes) // (bytes_per_token * config.block_tokens)
    num_tokens = num_blocks * config.block_tokens
    if num_tokens < config.max_model_len:
        raise ValueError(
            f"{given} bytes for KV, of {bytes_per_token} per token, room for {num_tokens} tokens; "
            f"that is less than max_model_len, {config.max_model_len}: one longest session must fit"
        )
    return num_blocks


def share_for_kv(config: EngineConfig, total_bytes: int, own_bytes: int, pass_bytes: int) -> int:
    """Return the bytes that `gpu_memory_utilization` leaves for keys and values; may be negative.

    Args:
        config: with a share of the GPU, and what graphs may take.
        total_bytes: of the GPU.
        own_bytes: what the process holds, its weights.
        pass_bytes: what the largest pass takes for a while.
    """
    assert config.gpu_memory_utilization is not None, "no share is given"
    share = int(total_bytes * config.gpu_memory_utilization)
    return share - CONTEXT_BYTES - own_bytes - pass_bytes - graph_bytes(config)


def graph_bytes(config: EngineConfig) -> int:
    """Return the bytes that CUDA graphs may take."""
    return config.graph_memory_mib * _MIB if config.graphs == "auto" else 0
