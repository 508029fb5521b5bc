"""What placements ask for against clusters that are written down here."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.config.cluster import Cluster, Node
from deployments.config.fit import shortages
from deployments.config.placement import Placement, placements_of
from deployments.config.schema import AppConfig
from deployments.config.serve_file import read_serve_file
from loadtest.report.machine import ROOT


def node(role: str = "", memory: float = 12e9, **resources: float) -> Node:
    return Node(
        resources={"memory": memory, **resources}, labels={"outrider/role": role} if role else {}
    )


@pytest.fixture(scope="module")
def prod() -> list[Placement]:
    return read_serve_file(ROOT / "configs" / "prod.yaml").placements


ROUTERS = [node("router", CPU=8), node("router", CPU=8)]
TARGET = node("target", CPU=16, GPU=4)
DRAFT = node("draft", CPU=4, GPU=1)
HEAD = node(CPU=0)


def test_the_cluster_of_the_manifests_has_all(prod: list[Placement]) -> None:
    assert shortages(prod, Cluster(nodes=[HEAD, *ROUTERS, TARGET, DRAFT])) == []


@pytest.mark.parametrize(
    ("nodes", "missing"),
    [
        ([], ["5 GPUs (Target 4, Draft 1), there are 0", "20 CPUs", "no node has the label"]),
        ([HEAD, *ROUTERS, DRAFT], ["5 GPUs (Target 4, Draft 1), there are 1", "role=target (T"]),
        ([HEAD, *ROUTERS, TARGET], ["there are 4", "role=draft (Draft)"]),
        ([TARGET, DRAFT, node(CPU=16)], ["in(router,constraint) (Constraint)"]),
        (
            [*ROUTERS, DRAFT, node("target", CPU=8, GPU=2), node("target", CPU=8, GPU=2)],
            ["Target needs 10 CPUs and 4 GPUs on one node, no node with outrider/role=target"],
        ),
        ([*ROUTERS, TARGET, node("draft", CPU=1, GPU=1)], ["Draft needs 2 CPUs and 1 GPU on one"]),
        (
            [node("router", memory=4e9, CPU=16), TARGET, DRAFT],
            ["Constraint needs 2 CPUs and 5.37 GB of memory on one node"],
        ),
    ],
    ids=["nothing", "no-target", "no-draft", "no-labels", "split-node", "few-cpus", "memory"],
)
def test_what_is_missing_is_named(
    prod: list[Placement], nodes: list[Node], missing: list[str]
) -> None:
    found = "; ".join(map(str, shortages(prod, Cluster(nodes=nodes))))
    for words in missing:
        assert words in found


def small(overrides: list[dict[str, Any]]) -> list[Placement]:
    return placements_of(AppConfig.model_validate({"target": {"model_path": "x"}}), overrides)


def test_bundles_may_be_spread_where_the_file_says_so() -> None:
    halves = Cluster(nodes=[node(CPU=3, GPU=1), node(CPU=3, GPU=1)])
    options = {"name": "Target", "placement_group_bundles": [{"CPU": 1, "GPU": 1}] * 2}
    assert "on one node" in str(shortages(small([options]), halves)[0])
    assert shortages(small([options | {"placement_group_strategy": "PACK"}]), halves) == []


def test_custom_resources_count() -> None:
    options = {"name": "Router", "ray_actor_options": {"resources": {"edge": 2}}}
    [fault] = shortages(small([options]), Cluster(nodes=[node(CPU=8, edge=1)]))
    assert str(fault) == "it needs 2 edge (Router 2), there are 1"
    [router] = [one for one in small([options]) if one.name == "Router"]
    assert router.own["CPU"] == 1, "Serve's own, where options come without num_cpus"


def test_the_fewest_replicas_count() -> None:
    scaled = {
        "name": "Router",
        "autoscaling_config": {"min_replicas": 2, "max_replicas": 50},
        "ray_actor_options": {"num_cpus": 2},
    }
    cluster = Cluster(nodes=[node(CPU=6)])  # 4 for routers, 1 for the rank, 0.1 for grammars
    [router] = [one for one in small([scaled]) if one.name == "Router"]
    assert (router.min_replicas, router.max_replicas) == (2, 50)
    assert shortages(small([scaled]), cluster) == []
    assert shortages(small([{"name": "Target", "num_replicas": 7}]), cluster)
