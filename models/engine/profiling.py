"""Measures the memory of the largest pass beside weights and KV, by running one before there is KV.

The temporary needs of a layer depend on the model, its kernels and the rows of a pass. torch knows
the most that it ever held. Ranks run it together, as they run every pass.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from models.config import EngineConfig
from models.engine.backends import LaidOut
from models.gpu.memory import DeviceMemory
from models.kv.budget import graph_bytes, share_for_kv
from models.kv.rows import BlockList, SequenceRows

_LOGIT_ROWS = 256  # rows of a pass: rounds of 32 sessions with drafts of 7
_DRAW_COPIES = 3  # copies of the logits, while tokens are drawn from them


def measured_share(
    config: EngineConfig, memory: DeviceMemory, laid_out: LaidOut, num_ids: int
) -> int:
    """Return the bytes that `gpu_memory_utilization` leaves for keys and values on this rank.

    Args:
        config: with a share of the GPU.
        memory: of the rank's device.
        laid_out: the model, whose weights are on it.
        num_ids: columns of the logits.

    Raises:
        ValueError: less is free, because other processes hold it.
    """
    pass_bytes = _pass_bytes(config, memory, laid_out, num_ids)
    left = share_for_kv(config, memory.total_bytes, memory.own_bytes, pass_bytes)
    free = memory.free_bytes - pass_bytes - graph_bytes(config)
    if left > free:
        raise ValueError(
            f"gpu_memory_utilization: {config.gpu_memory_utilization:g} of the GPU would leave "
            f"{left} bytes for KV, but {max(0, free)} are free: other processes hold the rest; "
            "give less"
        )
    return left


def _pass_bytes(config: EngineConfig, memory: DeviceMemory, laid_out: LaidOut, num_ids: int) -> int:
    sequences = _largest_pass(config)
    num_blocks = sum(len(rows.table.block_ids) for rows in sequences)
    backend = laid_out.backend(num_blocks)

    @torch.inference_mode()
    def run() -> None:
        backend.logits(sequences)

    num_logits = sum(rows.num_logits for rows in sequences)
    return memory.peak_of(run) + _DRAW_COPIES * 4 * num_ids * num_logits


def _largest_pass(config: EngineConfig) -> Sequence[SequenceRows]:
    """Return the most rows of a pass: of prompts as long as can be, from their beginning."""
    sequences = []
    num_left, size, next_block = config.max_num_batched_tokens, config.block_tokens, 0
    num_logits = min(num_left, _LOGIT_ROWS)
    while num_left > 0:
        count = min(num_left, config.max_model_len)
        num_blocks = -(-count // size)
        table = BlockList(list(range(next_block, next_block + num_blocks)), count)
        sequences.append(SequenceRows(table, 0, [0] * count, min(count, num_logits)))
        num_logits -= sequences[-1].num_logits
        num_left -= count
        next_block += num_blocks
    return sequences
