"""What reading a model's weights costs on a GPU, by its memory's bandwidth alone.

A draft step and a target pass of few rows read all weights once, and do little else: their bytes
by the GPU's bandwidth are the least they take. A draft step that takes more than a tenth of a pass
leaves little to gain: k = 5 then costs half a pass and more, for some 3.7 tokens at an acceptance
of 0.8.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from deployments.config.cluster import Cluster, Node
from deployments.config.fit import ModelSizes
from deployments.config.placement import Placement
from deployments.config.schema import AppConfig

_TYPE_LABEL = "ray.io/accelerator-type"
_MOST_STEP = 0.1  # of a target pass
# GB/s by the names that Ray gives GPUs in its labels, from NVIDIA's data sheets.
_GB_PER_S: Mapping[str, float] = {
    "T4": 320,
    "V100": 900,
    "L4": 300,
    "A10G": 600,
    "L40S": 864,
    "A100": 1555,
    "A100-40G": 1555,
    "A100-80G": 2039,
    "H100": 3350,
    "H200": 4800,
    "B200": 8000,
}
_EXAMPLE = "H100"  # where no GPU can be seen


def bandwidth_notes(
    config: AppConfig,
    placements: Sequence[Placement],
    sizes: Mapping[str, ModelSizes],
    cluster: Cluster,
) -> list[str]:
    """What a draft step and a target pass take at least, for a pair on GPUs.

    Args:
        config: whose pair it is.
        placements: of its deployments.
        sizes: by section, of the models whose files are here.
        cluster: whose GPUs are looked at, where any can be seen.
    """
    draft = config.draft
    if draft is None or not {"target", "draft"} <= set(sizes):
        return []
    if not all(model.device.startswith("cuda") for model in (config.target, draft)):
        return []
    by_name = {placement.name: placement for placement in placements}
    gpus = {name: _gpu_of(by_name[name], cluster) for name in ("Draft", "Target")}
    step_ms, pass_ms = (
        _least_ms(sizes[name.lower()].weight_bytes, gpus[name] or _EXAMPLE)
        for name in ("Draft", "Target")
    )
    share = step_ms / pass_ms
    seen = "" if all(gpus.values()) else f" ({_EXAMPLE} is taken where no GPU can be seen)"
    line = (
        f"by memory bandwidth alone a draft step takes {step_ms:.2f} ms on "
        f"{gpus['Draft'] or _EXAMPLE} and a target pass {pass_ms:.2f} ms on "
        f"{gpus['Target'] or _EXAMPLE}{seen}: a step is {100 * share:.0f}% of a pass"
    )
    if share > _MOST_STEP:
        line += f"; above {100 * _MOST_STEP:.0f}% drafting has little to gain: take a smaller draft"
    return [line]


def _least_ms(num_bytes: int, gpu: str) -> float:
    return num_bytes / (_GB_PER_S[gpu] * 1e9) * 1e3


def _gpu_of(placement: Placement, cluster: Cluster) -> str | None:
    """The slowest kind of GPU that ranks may come to; None: none that is known can be seen."""
    labels = placement.units[-1][1]
    kinds = {_kind(node) for node in cluster.nodes if node.has(labels)}
    return min((kind for kind in kinds if kind), key=_GB_PER_S.__getitem__, default=None)


def _kind(node: Node) -> str | None:
    name = dict(node.labels).get(_TYPE_LABEL, "")
    return name if name in _GB_PER_S else None
