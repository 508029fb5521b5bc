"""What a draft step costs beside a target pass, by the memory bandwidth of the GPUs they are on."""

from __future__ import annotations

import pytest

from deployments.config.cluster import Cluster, Node
from deployments.config.explain import bandwidth_notes
from deployments.config.fit import ModelSizes
from deployments.config.serve_file import read_serve_file
from loadtest.report.machine import ROOT

GB = 10**9


def notes(draft_gb: float, nodes: list[Node], name: str = "prod", ranks: int = 4) -> list[str]:
    served = read_serve_file(ROOT / "configs" / f"{name}.yaml")
    sizes = {
        section: ModelSizes(
            num_parameters=int(num_bytes / 2),
            weight_bytes=int(num_bytes),
            kv_bytes_per_token=1,
            kv_tokens=1,
        )
        for section, num_bytes in {"target": 141 * GB / ranks, "draft": draft_gb * GB}.items()
    }
    return bandwidth_notes(served.config, served.placements, sizes, Cluster(nodes=nodes))


def gpu_node(role: str, gpu: str) -> Node:
    labels = {"outrider/role": role, "ray.io/accelerator-type": gpu}
    return Node(resources={"GPU": 1}, labels=labels)


def test_a_pair_on_one_class_of_gpus_has_something_to_gain() -> None:
    [note] = notes(2.5, [gpu_node("draft", "H100"), gpu_node("target", "H100")])
    assert note == (
        "by memory bandwidth alone a draft step takes 0.75 ms on H100 and a target pass 10.52 ms "
        "on H100: a step is 7% of a pass"
    )


def test_a_draft_on_a_slow_gpu_is_told_of() -> None:
    [note] = notes(2.5, [gpu_node("draft", "L4"), gpu_node("target", "H100")])
    assert "a draft step takes 8.33 ms on L4" in note
    assert note.endswith(
        "a step is 79% of a pass; above 10% drafting has little to gain: take a smaller draft"
    )


def test_the_slowest_gpu_that_a_rank_may_come_to_counts() -> None:
    nodes = [gpu_node("draft", "H200"), gpu_node("draft", "A100-80G"), gpu_node("target", "H200")]
    assert "a draft step takes 1.23 ms on A100-80G" in notes(2.5, nodes)[0]


def test_where_no_gpu_can_be_seen_one_is_taken_and_named() -> None:
    [note] = notes(2.5, [])
    assert "(H100 is taken where no GPU can be seen)" in note


def test_nothing_is_said_of_pairs_on_cpus() -> None:
    assert notes(1.0, [], name="demo", ranks=1) == []


@pytest.mark.parametrize(
    ("name", "target_gb", "draft_gb"),
    [("single-gpu", 15.2, 1.0), ("one-node", 29.5, 1.0), ("prod", 141 / 4, 2.5)],
)
def test_shipped_pairs_have_a_draft_that_is_small_enough(
    name: str, target_gb: float, draft_gb: float
) -> None:
    """Bytes of the weights that a rank reads; what their heads name."""
    assert notes(draft_gb, [], name=name, ranks=round(141 / target_gb))[0].endswith("of a pass")
