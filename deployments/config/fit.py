"""Checks placements against the cluster: processors, labels, and memory for the models.

Memory counts weights and KV blocks, and nothing besides. A refused model could not be served by any
means; an accepted one may still be too much. Nothing here loads weights, and only `measured`
imports torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from deployments.config.cluster import Cluster
from deployments.config.fault import Fault
from deployments.config.model_files import to_come
from deployments.config.model_paths import folder_of
from deployments.config.placement import STRICT_PACK, Labels, Placement, Resources, deployment_of
from deployments.config.sections.models import ModelConfig, Models
from models.checkpoint.packed_shapes import as_packed, kept_bytes, packed_shapes
from models.checkpoint.stored_weights import (
    num_stored_bytes,
    num_stored_parameters,
    stored_shapes,
    stores_float8,
)
from models.config import BITS_A_WEIGHT

_COUNTED = ("CPU", "GPU")
_FIRST = ("GPU", "CPU")  # the order in which shortages are named
DTYPE_BITS = {"bfloat16": 16, "float16": 16, "float32": 32}


# --- processors and labels ------------------------------------------------------------------------


def shortages(placements: Sequence[Placement], cluster: Cluster) -> list[Fault]:
    """Return the shortages for the fewest replicas, GPUs first; empty if none can be seen.

    It is not computed if everything fits next to everything else. Ray's own packing would have to
    be repeated for that.
    """
    missing = _short_in_all(placements, cluster)
    unlabelled = _labels_of_no_node(placements, cluster)
    if unlabelled:
        missing.append(f"no node has the label {', '.join(unlabelled)}")
    if not missing:
        missing = _too_wide(placements, cluster)
    return [Fault("", text, "nodes") for text in missing]


def _short_in_all(placements: Sequence[Placement], cluster: Cluster) -> list[str]:
    needs: dict[str, dict[str, float]] = defaultdict(dict)
    for placement in placements:
        for kind, amount in _sum(unit for unit, _ in placement.units).items():
            if amount > 0 and placement.min_replicas > 0:
                needs[kind][placement.name] = amount * placement.min_replicas
    found = []
    for kind in sorted(needs, key=lambda kind: (_rank(kind), kind)):
        needed, have = sum(needs[kind].values()), cluster.total(kind)
        if needed > have + 1e-6:
            who = ", ".join(f"{name} {_amount(kind, n)}" for name, n in needs[kind].items())
            there = f"there are {_amount(kind, have)}"
            found.append(f"it needs {_quantity(kind, needed)} ({who}), {there}")
    return found


def _labels_of_no_node(placements: Sequence[Placement], cluster: Cluster) -> list[str]:
    askers: dict[str, list[str]] = defaultdict(list)
    for placement in placements:
        for _, labels in placement.units:
            is_new = placement.name not in askers[_shown(labels)]
            if is_new and not any(node.has(labels) for node in cluster.nodes):
                askers[_shown(labels)].append(placement.name)
    return [f"{labels} ({', '.join(names)})" for labels, names in askers.items() if names]


def _too_wide(placements: Sequence[Placement], cluster: Cluster) -> list[str]:
    """Replicas that no single node can hold."""
    found = []
    for placement in placements:
        units = placement.units
        pieces = [(_sum(unit for unit, _ in units), units[0][1])]
        if placement.bundles and placement.strategy != STRICT_PACK:
            pieces = [(dict(unit), labels) for unit, labels in units]
        for resources, labels in pieces:
            if placement.min_replicas > 0 and not _fits(resources, labels, cluster):
                wanted = " and ".join(_quantity(kind, n) for kind, n in resources.items() if n)
                where = f" with {_shown(labels)}" if labels else ""
                found.append(
                    f"{placement.name} needs {wanted} on one node, no node{where} has them"
                )
                break
    return found


def _fits(resources: Resources, labels: Labels, cluster: Cluster) -> bool:
    return any(
        node.has(labels)
        and all(node.resources.get(kind, 0.0) + 1e-6 >= n for kind, n in resources.items())
        for node in cluster.nodes
    )


def _sum(units: Iterable[Resources]) -> dict[str, float]:
    total: dict[str, float] = defaultdict(float)
    for unit in units:
        for kind, amount in unit.items():
            total[kind] += amount
    return dict(total)


def _rank(kind: str) -> int:
    return _FIRST.index(kind) if kind in _FIRST else len(_FIRST)


def _quantity(kind: str, amount: float) -> str:
    if kind == "memory":
        return f"{_amount(kind, amount)} of memory"
    is_plural = kind in _COUNTED and amount != 1
    return f"{_amount(kind, amount)} {kind}{'s' if is_plural else ''}"


def _amount(kind: str, amount: float) -> str:
    return gigabytes(amount) if kind == "memory" else f"{amount:g}"


def _shown(labels: Labels) -> str:
    return ", ".join(f"{key}={value}" for key, value in labels.items())


# --- memory ---------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class RankBytes:
    """The known bytes of one rank; never more than the real ones."""

    weights: int
    kv: int = 0

    @property
    def total(self) -> int:
        """Both."""
        return self.weights + self.kv


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSizes:
    """The known sizes of one model; bytes are those of each rank."""

    num_parameters: int
    weight_bytes: int
    kv_bytes_per_token: int
    kv_tokens: int | None  # None: known once the model is loaded
    bits_a_weight: float = 0.0  # as in `MemoryEstimate`
    source: str = ""  # file that the folder was converted from
    quantization: str | None = None  # the layers', by config or as they are stored

    @property
    def rank(self) -> RankBytes:
        """The bytes of a rank."""
        return RankBytes(
            weights=self.weight_bytes, kv=(self.kv_tokens or 0) * self.kv_bytes_per_token
        )


def least_rank_bytes(model: ModelConfig, section: str) -> RankBytes:
    """Return a rank's bytes by the headers of the checkpoint's files.

    KV is included only if the config gives bytes.

    Raises:
        ValueError: a file cannot be read.
    """
    key = f"{section}.model_path"
    folder = folder_of(model, section)
    if to_come(folder, key) is not None:  # their headers are not here to be read
        return RankBytes(weights=0, kv=model.kv_cache_memory or 0)
    return RankBytes(weights=_least_weights(model, folder), kv=model.kv_cache_memory or 0)


def _least_weights(model: ModelConfig, folder: Path) -> int:
    """Return the bytes of a rank's weights, by the headers of the files in the model's folder."""
    num_ranks, whole_bits = model.tensor_parallel_size, DTYPE_BITS[model.dtype]
    if model.engine == "vllm":
        return num_stored_bytes(folder, whole_bits // 8) // num_ranks
    found = as_packed(model.model_copy(update={"model_path": str(folder)}))
    shapes = stored_shapes(Path(found.model_path))
    if packed_shapes(shapes):
        return kept_bytes(shapes, whole_bits // 8)
    is_rounded = model.quantization or (model.device.startswith("cuda") and stores_float8(folder))
    bits = BITS_A_WEIGHT[model.quantization or "fp8"] if is_rounded else whole_bits
    return int(num_stored_parameters(folder) // num_ranks * bits / 8)


def measured(model: ModelConfig, gpu_bytes: Sequence[int]) -> ModelSizes:
    """Sizes of a resolved model, whose files are held against its config. Imports transformers and
    torch: seconds.

    Args:
        model: with the path of a folder that is here.
        gpu_bytes: memory of each GPU that can be seen; empty: none can.

    Raises:
        ValueError: the model cannot be served.
    """
    from models.checkpoint.memory_estimate import memory_estimate
    from models.checkpoint.stored_shapes import check_stored_shapes
    from models.gguf.folder import source_of
    from models.kv.budget import num_kv_blocks, share_for_kv

    taken = memory_estimate(model)
    if model.engine == "own":
        check_stored_shapes(model)
    num_blocks: int | None = None
    if model.gpu_memory_utilization is None:
        num_blocks = num_kv_blocks(model, taken.kv_bytes_per_token)
    elif gpu_bytes:
        left = share_for_kv(model, min(gpu_bytes), taken.weight_bytes, pass_bytes=0)
        num_blocks = max(0, left) // (taken.kv_bytes_per_token * model.block_tokens)
    return ModelSizes(
        num_parameters=taken.num_parameters,
        weight_bytes=taken.weight_bytes,
        kv_bytes_per_token=taken.kv_bytes_per_token,
        kv_tokens=None if num_blocks is None else num_blocks * model.block_tokens,
        bits_a_weight=taken.bits_a_weight,
        source=source_of(as_packed(model).model_path),
        quantization=taken.quantization,
    )


def memory_faults(
    config: Models,
    ranks: Mapping[str, RankBytes],
    placements: Sequence[Placement],
    cluster: Cluster,
) -> list[Fault]:
    """Return the models that do not fit, by section; empty if none can be seen.

    Args:
        config: whose models they are.
        ranks: what a rank of "target" and "draft" takes.
        placements: of all deployments.
        cluster: whose nodes hold the models on CPUs, and whose GPUs the others.
    """
    on_cpu, on_gpu = 0, 0
    faults = []
    for section, taken in ranks.items():
        model = config.models[section]
        [placement] = [one for one in placements if one.name == deployment_of(section)]
        num_ranks = model.tensor_parallel_size * placement.min_replicas
        if not model.device.startswith("cuda"):
            on_cpu += taken.total * num_ranks
            if model.spare and model.engine == "own" and len(cluster.nodes) == 1:
                on_cpu -= taken.weights * num_ranks // 2  # both replicas read one copy
            faults += _too_large_for_a_node(section, model, taken, placement, cluster)
        elif cluster.gpu_bytes:
            on_gpu += taken.total * num_ranks
            faults += _too_large_for_a_gpu(section, model, taken, cluster)
    return faults or _too_large_together(on_cpu, on_gpu, cluster)


def _too_large_for_a_node(
    section: str, model: ModelConfig, taken: RankBytes, placement: Placement, cluster: Cluster
) -> list[Fault]:
    on_one_node = model.tensor_parallel_size if placement.strategy == STRICT_PACK else 1
    needed = taken.total * on_one_node
    have = max((node.memory_bytes for node in cluster.nodes), default=0)
    if needed <= have:
        return []
    text = (
        f"{gigabytes(needed)} of weights and KV do not fit in a node's memory, of which "
        f"{gigabytes(have)} are free"
    )
    return [Fault(section, text, "memory")]


def _too_large_for_a_gpu(
    section: str, model: ModelConfig, taken: RankBytes, cluster: Cluster
) -> list[Fault]:
    largest = max(cluster.gpu_bytes)
    if taken.total <= largest:
        return []
    text = (
        f"a rank takes {gigabytes(taken.total)} of weights and KV, the largest GPU has "
        f"{gigabytes(largest)}"
    )
    return [Fault(section, text, "memory")]


def _too_large_together(on_cpu: int, on_gpu: int, cluster: Cluster) -> list[Fault]:
    texts = []
    have = sum(cluster.gpu_bytes)
    if on_gpu > have:
        texts.append(
            f"all models take {gigabytes(on_gpu)} of GPU memory, there are {gigabytes(have)}"
        )
    have = sum(node.memory_bytes for node in cluster.nodes)
    if on_cpu > have:
        texts.append(f"all models take {gigabytes(on_cpu)} of memory, {gigabytes(have)} are free")
    return [Fault("", text, "memory") for text in texts]


def gigabytes(num_bytes: float) -> str:
    """Write bytes with three digits: 1.23 GB, 456 MB, 7.89 KB; a byte has none."""
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("KB", 1e3)):
        if num_bytes >= size:
            return f"{num_bytes / size:.3g} {unit}"
    return f"{num_bytes:.0f} B"
