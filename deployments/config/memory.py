"""Whether models fit in the memory there is: of GPUs that can be seen, of nodes without GPUs.

Counts weights and KV blocks, and nothing besides: what is refused here could not be served by any
means; what is not may still be too much.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from deployments.config.model_paths import resolve_model
from deployments.config.placement import Placement
from deployments.config.schema import AppConfig, ModelConfig
from deployments.config.shortages import Cluster, Node
from models.checkpoint.stored_weights import num_stored_parameters

_ITEM_BYTES = {"bfloat16": 2, "float16": 2, "float32": 4}
_NODE_MEMORY = ("memory", "object_store_memory")  # Ray's two parts of what was free


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBytes:
    """What one rank takes, as far as it is known; never more than it will."""

    weights: int
    kv: int = 0

    @property
    def total(self) -> int:
        """Both."""
        return self.weights + self.kv


def least_rank_bytes(model: ModelConfig, section: str) -> RankBytes:
    """By the headers of the checkpoint's files; KV only where the config says bytes.

    Raises:
        ValueError: a file cannot be read.
    """
    folder = resolve_model(model.model_path, model.dtype, f"{section}.model_path")
    item_bytes = 1 if model.quantization else _ITEM_BYTES[model.dtype]
    num_parameters = num_stored_parameters(folder) // model.tensor_parallel_size
    return RankBytes(weights=num_parameters * item_bytes, kv=model.kv_cache_memory or 0)


def memory_faults(
    config: AppConfig,
    ranks: Mapping[str, RankBytes],
    placements: Sequence[Placement],
    cluster: Cluster,
    gpu_bytes: Sequence[int] = (),
) -> list[str]:
    """What does not fit, by section; empty: nothing, as far as one can see.

    Args:
        config: whose models they are.
        ranks: what a rank of "target" and "draft" takes.
        placements: of all deployments.
        cluster: whose nodes hold the models on CPUs.
        gpu_bytes: memory of each GPU that can be seen; empty: none can.
    """
    on_cpu, on_gpu = 0, 0
    faults = []
    for section, taken in ranks.items():
        model: ModelConfig = getattr(config, section)
        [placement] = [one for one in placements if one.name.lower() == section]
        num_ranks = model.tensor_parallel_size * placement.min_replicas
        if not model.device.startswith("cuda"):
            on_cpu += taken.total * num_ranks
            faults += _too_large_for_a_node(section, model, taken, placement, cluster)
        elif gpu_bytes:
            on_gpu += taken.total * num_ranks
            if taken.total > max(gpu_bytes):
                faults.append(
                    f"{section}: a rank takes {gigabytes(taken.total)} of weights and KV, the "
                    f"largest GPU has {gigabytes(max(gpu_bytes))}"
                )
    if faults:
        return faults
    return _too_large_together(on_cpu, on_gpu, cluster, gpu_bytes)


def _too_large_for_a_node(
    section: str, model: ModelConfig, taken: RankBytes, placement: Placement, cluster: Cluster
) -> list[str]:
    on_one_node = model.tensor_parallel_size if placement.strategy == "STRICT_PACK" else 1
    needed = taken.total * on_one_node
    have = max((_memory(node) for node in cluster.nodes), default=0)
    if needed <= have:
        return []
    return [
        f"{section}: {gigabytes(needed)} of weights and KV do not fit in a node's memory, "
        f"of which {gigabytes(have)} are free"
    ]


def _too_large_together(
    on_cpu: int, on_gpu: int, cluster: Cluster, gpu_bytes: Sequence[int]
) -> list[str]:
    faults = []
    if on_gpu > sum(gpu_bytes):
        faults.append(
            f"all models take {gigabytes(on_gpu)} of GPU memory, there are "
            f"{gigabytes(sum(gpu_bytes))}"
        )
    have = sum(_memory(node) for node in cluster.nodes)
    if on_cpu > have:
        faults.append(f"all models take {gigabytes(on_cpu)} of memory, {gigabytes(have)} are free")
    return faults


def _memory(node: Node) -> int:
    return int(sum(node.resources.get(kind, 0.0) for kind in _NODE_MEMORY))


def gigabytes(num_bytes: float) -> str:
    """With three digits: 1.23 GB, 456 MB, 7.89 KB; a byte has none."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes:.0f} B"
