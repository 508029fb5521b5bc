"""How many KV blocks there are: from tokens, bytes or a share of a GPU, as the operator says."""

from __future__ import annotations

import torch

from models.config import EngineConfig


def num_kv_blocks(config: EngineConfig, bytes_per_token: int) -> int:
    """Blocks of the pool. Call it when the weights are loaded: what they take counts.

    Args:
        config: says in one of three ways how much memory there is.
        bytes_per_token: keys and values of all layers, on this rank.

    Raises:
        ValueError: the memory that was given does not hold one session of `max_model_len`.
    """
    if config.kv_cache_memory is not None:
        num_bytes = int(config.kv_cache_memory)
        given = f"kv_cache_memory: {num_bytes}"
    elif config.gpu_memory_utilization is not None:
        num_bytes = _gpu_bytes(config.device, config.gpu_memory_utilization)
        given = f"gpu_memory_utilization: {config.gpu_memory_utilization:g} leaves {num_bytes}"
    else:
        return config.num_blocks
    num_blocks = max(0, num_bytes) // (bytes_per_token * config.block_size)
    num_tokens = num_blocks * config.block_size
    if num_tokens < config.max_model_len:
        raise ValueError(
            f"{given} bytes for KV, of {bytes_per_token} per token, room for {num_tokens} tokens; "
            f"that is less than max_model_len, {config.max_model_len}: one longest session must fit"
        )
    return num_blocks


def _gpu_bytes(device: str, utilization: float) -> int:
    """What is left of that share of the device's memory beside all that is in use now."""
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info(torch.device(device))
    return int(total * utilization) - (total - free)
