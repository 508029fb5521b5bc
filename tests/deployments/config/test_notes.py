"""Notes about a config: pairs that gain little, threads, sessions, and a target that is alone."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from deployments.config.cluster import Cluster, Node
from deployments.config.explain import (
    admission_notes,
    bandwidth_notes,
    drafting_notes,
    loss_notes,
    thread_notes,
)
from deployments.config.fit import ModelSizes
from deployments.config.keys import assignments
from deployments.config.serve_file import read_serve_file
from loadtest.report.machine import ROOT

CONFIGS = ROOT / "configs"
GB = 10**9


def sizes_of(num_bytes: float) -> ModelSizes:
    return ModelSizes(
        num_parameters=int(num_bytes / 2),
        weight_bytes=int(num_bytes),
        kv_bytes_per_token=1,
        kv_tokens=1,
    )


# --- the cost of a draft step beside a target pass, by the memory bandwidth of the GPUs -----------


def of_bandwidth(
    draft_gb: float, nodes: list[Node], name: str = "prod", ranks: int = 4
) -> list[str]:
    served = read_serve_file(CONFIGS / f"{name}.yaml")
    sizes = {"target": sizes_of(141 * GB / ranks), "draft": sizes_of(draft_gb * GB)}
    return bandwidth_notes(served.config, served.placements, sizes, Cluster(nodes=nodes))


def gpu_node(role: str, gpu: str) -> Node:
    labels = {"outrider/role": role, "ray.io/accelerator-type": gpu}
    return Node(resources={"GPU": 1}, labels=labels)


@pytest.mark.parametrize(
    ("drafts", "target", "said"),
    [
        (
            ["H100"],
            "H100",
            r"by memory bandwidth alone a draft step takes 0\.75 ms on H100 and a target pass "
            r"10\.52 ms on H100: a step is 7% of a pass",
        ),
        (
            ["L4"],
            "H100",
            r".* a draft step takes 8\.33 ms on L4 .*: a step is 79% of a pass; above 10% drafting "
            r"has little to gain: take a smaller draft",
        ),
        (["H200", "A100-80G"], "H200", r".* a draft step takes 1\.23 ms on A100-80G .*"),
    ],
    ids=["of one class", "a slow one", "the slowest that a rank may come to counts"],
)
def test_a_draft_step_is_compared_with_a_target_pass(
    drafts: list[str], target: str, said: str
) -> None:
    nodes = [*(gpu_node("draft", gpu) for gpu in drafts), gpu_node("target", target)]
    [note] = of_bandwidth(2.5, nodes)
    assert re.fullmatch(said, note)


def test_where_no_gpu_can_be_seen_one_is_taken_and_named() -> None:
    [note] = of_bandwidth(2.5, [])
    assert "(H100 is taken where no GPU can be seen)" in note


def test_nothing_is_said_of_pairs_on_cpus() -> None:
    assert of_bandwidth(1.0, [], name="demo", ranks=1) == []


@pytest.mark.parametrize(
    ("name", "target_gb", "draft_gb"),
    [("single-gpu", 15.2, 1.0), ("one-node", 29.5, 1.0), ("prod", 141 / 4, 2.5)],
)
def test_shipped_pairs_have_a_draft_that_is_small_enough(
    name: str, target_gb: float, draft_gb: float
) -> None:
    """Bytes of the weights that a rank reads; what their heads name."""
    assert of_bandwidth(draft_gb, [], name=name, ranks=round(141 / target_gb))[0].endswith(
        "of a pass"
    )


# --- a target that is alone and slow to load ------------------------------------------------------


def of_losses(*, failover_s: float, min_replicas: int = 1) -> list[str]:
    changes = {
        "router.timeouts.failover_s": failover_s,
        "Target.autoscaling_config.min_replicas": min_replicas,
    }
    served = read_serve_file(CONFIGS / "prod.yaml", changes)
    return loss_notes(served.config, served.placements, {"target": sizes_of(36 * GB)})


def test_streams_that_end_before_the_only_target_is_back_are_told_of() -> None:
    [note] = of_losses(failover_s=120)
    assert note.startswith("one target, which takes some 174 s to load: when it is lost")
    assert "router.timeouts.failover_s, 120 s" in note


def test_two_targets_or_a_longer_wait_are_enough() -> None:
    assert of_losses(failover_s=120, min_replicas=2) == []
    shipped = read_serve_file(CONFIGS / "prod.yaml").config.router.timeouts.failover_s
    assert of_losses(failover_s=shipped) == []


# --- more threads than cores, where all models are on one machine ---------------------------------


def of_threads(changes: dict[str, Any], cores: float, num_nodes: int = 1) -> list[str]:
    config = read_serve_file(CONFIGS / "demo.yaml", changes).config
    node = Node(resources={"CPU": cores}, labels={})
    return thread_notes(config, Cluster(nodes=(node,) * num_nodes))


def test_the_keys_and_the_cores_are_named() -> None:
    [note] = of_threads({"target.num_threads": 2, "draft.num_threads": 2}, cores=2)
    assert note.startswith("4 threads of models on 2 cores (target.num_threads 2, draft.num_thr")
    assert note.endswith("give them fewer")


def test_threads_of_ranks_are_summed_up() -> None:
    ranks = {
        "target.tensor_parallel_size": 2,
        "Target.placement_group_bundles": [{"CPU": 0.1}, {"CPU": 0.1}],
    }
    [note] = of_threads({"target.num_threads": 2, **ranks}, cores=4)
    assert "5 threads of models on 4 cores (target.num_threads 2 on 2 ranks, draft" in note


@pytest.mark.parametrize(
    ("threads", "cores", "num_nodes"),
    [
        pytest.param(1, 1, 1, id="one each does not spin"),
        pytest.param(2, 4, 1, id="enough cores"),
        pytest.param(2, 0, 1, id="a node that gives no cores"),
        pytest.param(2, 1, 2, id="models may be on other nodes"),
    ],
)
def test_nothing_is_said_where_nothing_is_known_to_be_wrong(
    threads: int, cores: float, num_nodes: int
) -> None:
    changes = {"target.num_threads": threads, "draft.num_threads": threads}
    assert of_threads(changes, cores, num_nodes) == []


# --- sessions that are drafted for less, or wait for each other -----------------------------------


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (["draft.max_model_len=256"], "are drafted for by suffix decoding only"),
        (
            ["draft.max_model_len=256", "router.speculation.suffix_decoding_max_tree_depth=0"],
            "are drafted for by prompt lookup only",
        ),
        (
            [
                "draft.max_model_len=256",
                "router.speculation.suffix_decoding_max_tree_depth=0",
                "router.speculation.prompt_lookup_max=0",
            ],
            "are not drafted for at all",
        ),
        (["draft.max_model_len=256", "router.max_model_len=256"], ""),
        (["draft.max_model_len=256", "router.speculation.method=ngram"], ""),
        ([], ""),
    ],
    ids=["suffix", "lookup", "no-lookup", "router-shorter", "ngram", "as-shipped"],
)
def test_a_draft_that_reads_less_than_its_target_is_noted(changes: list[str], said: str) -> None:
    served = read_serve_file(CONFIGS / "demo.yaml", assignments(changes))
    notes = drafting_notes(served.config)
    if said:
        longest = served.config.target.max_model_len
        assert notes == [
            f"draft.max_model_len 256 is below target.max_model_len {longest}: sessions longer "
            f"than 256 tokens {said}"
        ]
    else:
        assert notes == []


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_routers_of_shipped_configs_let_in_no_more_than_targets_hold(path: Path) -> None:
    served = read_serve_file(path)
    assert admission_notes(served.config, served.placements, served.router) == []
