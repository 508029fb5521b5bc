"""Whether models fit, by sizes that are written down here."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from deployments.config.cluster import Cluster, Node
from deployments.config.explain import model_lines
from deployments.config.fit import (
    RankBytes,
    gigabytes,
    least_rank_bytes,
    measured,
    memory_faults,
)
from deployments.config.placement import placements_of
from deployments.config.schema import AppConfig
from tests.cases.models.float8_folder import publish
from tests.cases.models.llama_family import CONFIGS, write
from tests.harness.local import DEMO

GB = 10**9


def faults(
    target: dict[str, Any],
    *sizes: int,
    nodes: list[float] | None = None,
    gpus: list[int] | None = None,
    replicas: int | None = None,
) -> str:
    """What is wrong with a target, and perhaps a draft on the same device, of these sizes."""
    path = {"model_path": "x"}
    tree: dict[str, Any] = {"target": path | target}
    if len(sizes) > 1:
        tree["draft"] = path | {"device": target.get("device", "cpu")}
    config = AppConfig.model_validate(tree)
    placements = placements_of(config, [{"name": "Target", "num_replicas": replicas}])
    cluster = Cluster(
        nodes=[Node(resources={"memory": size * GB}, labels={}) for size in nodes or [8.0]],
        gpu_bytes=gpus or [],
    )
    ranks = {
        section: RankBytes(weights=size * GB)
        for section, size in zip(("target", "draft"), sizes, strict=False)
    }
    return "; ".join(map(str, memory_faults(config, ranks, placements, cluster)))


CUDA = {"device": "cuda"}
SPARED = {"device": "cuda", "spare": True}  # two replicas


@pytest.mark.parametrize(
    ("found", "complaint"),
    [
        (faults({}, 7), ""),
        (faults({}, 9), "target: 9 GB of weights and KV do not fit in a node's memory, of which 8"),
        (faults({}, 9, nodes=[4, 16]), ""),
        (faults({"tensor_parallel_size": 2}, 5), "target: 10 GB of weights and KV do not fit"),
        (faults({}, 5, 4), "all models take 9 GB of memory, 8 GB are free"),
        (faults({}, 5, replicas=2), "all models take 10 GB of memory"),
        (faults(CUDA, 100), ""),  # nobody can see the GPUs
        (faults(CUDA, 20, gpus=[24 * GB]), ""),
        (faults(CUDA, 30, gpus=[24 * GB]), "target: a rank takes 30 GB of weights and KV, the lar"),
        (faults(SPARED, 14, gpus=[24 * GB]), "all models take 28 GB of GPU memory, there are 24"),
        (faults(SPARED, 14, gpus=[24 * GB, 24 * GB]), ""),
        (faults({"spare": True}, 7), ""),  # which shares the weights
        (
            faults({"spare": True}, 7, nodes=[8, 4]),
            "all models take 14 GB of memory, 12 GB are fre",
        ),
        (faults({"spare": True, "engine": "vllm"}, 7), "all models take 14 GB of memory, 8 GB are"),
        (faults({"spare": True}, 9), "target: 9 GB of weights and KV do not fit in a node's memo"),
        (faults(CUDA, 20, 5, gpus=[24 * GB]), "all models take 25 GB of GPU memory, there are 24"),
        (faults(CUDA, 20, 5, gpus=[24 * GB, 24 * GB]), ""),
    ],
)
def test_what_does_not_fit_is_named(found: str, complaint: str) -> None:
    assert found.startswith(complaint)
    assert bool(found) == bool(complaint)


def test_a_share_of_a_gpu_is_the_most_that_a_spares_replica_takes() -> None:
    target = {"model_path": "x", "device": "cuda", "spare": True, "gpu_memory_utilization": 0.9}
    config = AppConfig.model_validate({"target": target})
    assert placements_of(config, [])[1].min_replicas == 2
    options = {"name": "Target", "placement_group_bundles": [{"GPU": 0.5}]}
    with pytest.raises(
        ValueError, match=r"gpu_memory_utilization is 0\.9, at most 0\.5 of a GPU is"
    ):
        placements_of(config, [options])


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, RankBytes(weights=14_950_912)),
        ({"dtype": "float32"}, RankBytes(weights=29_901_824)),
        (
            {"quantization": "q8", "kv_cache_memory": "1MiB"},
            RankBytes(weights=7_942_672, kv=1 << 20),
        ),
        ({"quantization": "q4"}, RankBytes(weights=4_672_160)),
        ({"tensor_parallel_size": 2}, RankBytes(weights=7_475_456)),
    ],
)
def test_files_alone_tell_the_least(keys: dict[str, Any], expected: RankBytes) -> None:
    tree = {"target": {"model_path": str(DEMO / "target"), **keys}}
    assert least_rank_bytes(AppConfig.model_validate(tree).target, "target") == expected


def test_float8_takes_a_byte_on_gpus(tmp_path: Path) -> None:
    write(CONFIGS["llama"], tmp_path / "original")
    folder = publish(tmp_path / "original", tmp_path / "published")
    tree: dict[str, Any] = {"model_path": str(folder), "max_model_len": 256}
    least = {}
    for device in ("cpu", "cuda"):
        config = AppConfig.model_validate({"target": {**tree, "device": device}}).target
        least[device] = least_rank_bytes(config, "target").weights
    assert least["cpu"] == 2 * least["cuda"] > 0
    sizes = measured(config, [])
    assert ", bfloat16, fp8; " in model_lines(config, sizes, None)[0]


def test_sizes_have_three_digits() -> None:
    shown = [gigabytes(size) for size in (12, 1234, 12_345_678, 1_234_567_890, 141_000_000_000)]
    assert shown == ["12 B", "1.23 KB", "12.3 MB", "1.23 GB", "141 GB"]
