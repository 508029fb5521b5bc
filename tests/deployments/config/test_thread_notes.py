"""More threads than cores are told of, where all models are on one machine."""

from __future__ import annotations

from typing import Any

import pytest

from deployments.config.cluster import Cluster, Node
from deployments.config.explain import thread_notes
from deployments.config.serve_file import read_serve_file
from loadtest.report.machine import ROOT

DEMO = ROOT / "configs" / "demo.yaml"


def notes(changes: dict[str, Any], cores: float, num_nodes: int = 1) -> list[str]:
    config = read_serve_file(DEMO, changes).config
    node = Node(resources={"CPU": cores}, labels={})
    return thread_notes(config, Cluster(nodes=(node,) * num_nodes))


def test_the_keys_and_the_cores_are_named() -> None:
    [note] = notes({"target.num_threads": 2, "draft.num_threads": 2}, cores=2)
    assert note.startswith("4 threads of models on 2 cores (target.num_threads 2, draft.num_thr")
    assert note.endswith("give them fewer")


def test_threads_of_ranks_are_summed_up() -> None:
    ranks = {
        "target.tensor_parallel_size": 2,
        "Target.placement_group_bundles": [{"CPU": 0.1}, {"CPU": 0.1}],
    }
    [note] = notes({"target.num_threads": 2, **ranks}, cores=4)
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
    assert notes(changes, cores, num_nodes) == []
