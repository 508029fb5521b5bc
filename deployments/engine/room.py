"""Checks that a model has room beside those that are in memory already.

Only weights and KV blocks are counted. A refused model would not fit, or would make the system end
processes of the models that serve. An accepted one may still be too much.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

from deployments.config.sections.models import ModelConfig

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def refuse_without_room(model: ModelConfig) -> None:
    """See that a rank of a model fits into what is free here now. Imports torch.

    Raises:
        ValueError: it does not, or the model cannot be served; with both sizes.
    """
    needed, free = _needed_bytes(model), _free_bytes(model.device)
    if free is not None and needed > free:
        what = "memory" if model.device == "cpu" else "GPU memory"
        raise ValueError(
            f"{model.model_path} takes {needed / 1e6:.0f} MB of weights and KV beside the model "
            f"that serves, {free / 1e6:.0f} MB of {what} are free"
        )


def _needed_bytes(model: ModelConfig) -> int:
    from models.checkpoint.memory_estimate import memory_estimate
    from models.kv.budget import num_kv_blocks

    if model.gpu_memory_utilization is not None:
        import torch

        total: int = torch.cuda.mem_get_info(model.device)[1]
        return int(total * model.gpu_memory_utilization)
    taken = memory_estimate(model)
    num_blocks = num_kv_blocks(model, taken.kv_bytes_per_token)
    return taken.weight_bytes + num_blocks * model.block_tokens * taken.kv_bytes_per_token


def _free_bytes(device: str) -> int | None:
    """Return the free bytes of a device; None if they cannot be known."""
    if device != "cpu":
        import torch

        free: int = torch.cuda.mem_get_info(device)[0]
        return free
    known = [free for free in (free_of_node(_MEMINFO), free_of_group(_CGROUP)) if free is not None]
    return min(known, default=None)


def free_of_node(meminfo: Path) -> int | None:
    """Return the bytes that the node's processes may still take; None if they are not known."""
    with contextlib.suppress(OSError, ValueError):
        for line in meminfo.read_text(encoding="ascii").splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return None


def free_of_group(folder: Path) -> int | None:
    """Return the free bytes of the container (cgroup v2); None without a visible limit."""
    try:
        limit = int((folder / "memory.max").read_text(encoding="ascii"))
        used = int((folder / "memory.current").read_text(encoding="ascii"))
        stat = dict(
            line.split()
            for line in (folder / "memory.stat").read_text(encoding="ascii").splitlines()
        )
        return max(0, limit - used + int(stat.get("inactive_file", 0)))  # cached files give way
    except (OSError, ValueError):  # no such files, or the limit is "max"
        return None
