"""A rehearsal reads manifests, replaces what it names, and keeps KubeRay's rules."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from deployments.config.serve_file import read_serve_text
from loadtest.experiments.rehearse import REHEARSE, obstacles
from loadtest.rehearse.kuberay import allows_eviction
from loadtest.rehearse.manifests import Manifests, num_bytes
from loadtest.rehearse.substitutions import substituted_config, substituted_job
from loadtest.report.machine import ROOT
from loadtest.trial.command import choose
from tests.k8s.test_manifests import built

ROUTER = {"outrider/role": "router"}


def manifests(folder: str) -> Manifests:
    built(folder)  # skips where kubectl is not installed
    return Manifests.of(ROOT / "k8s" / folder)


def test_pods_are_those_of_the_groups() -> None:
    pods = {pod.group: pod for pod in manifests("base").pods()}
    assert list(pods) == ["head", "router", "draft", "target"]
    assert [pod.group for pod in manifests("overlays/one-gpu").pods()] == ["head", "gpu"]
    assert pods["router"].replicas == 2
    assert pods["head"].start["num-cpus"] == "0"  # not the container's limit
    assert pods["target"].start == {
        "num-cpus": "16",
        "num-gpus": "4",
        "memory": str(200 * 2**30),
    }
    assert pods["router"].start["memory"] == "12884901888"
    assert pods["draft"].node_labels == {"outrider/role": "draft"}
    assert pods["router"].grace_s == 1860.0
    assert [store.group for store in manifests("base").stores] == ["outrider-redis"]


def test_clients_reach_router_pods_or_the_head_that_has_the_only_proxy() -> None:
    for folder, pods in (("base", [("router", 2)]), ("overlays/one-gpu", [("head", 1)])):
        assert [(pod.group, pod.replicas) for pod in manifests(folder).reachable()] == pods, folder


@pytest.mark.parametrize("word", ["drain:nobody", "restart:router", "router"])
def test_an_event_that_there_is_not_is_refused_before_anything_starts(word: str) -> None:
    if obstacles():
        pytest.skip(f"a rehearsal cannot be here: {', '.join(obstacles())}")
    chosen = choose(REHEARSE, is_quick=True, given=[f"events={word}"])
    refusal = f"events: must be release, key:NAME=VALUE, .* got '{word}'"
    with pytest.raises(ValueError, match=refusal):
        chosen.run(lambda result: None)


def test_a_folder_that_is_none_is_refused_with_the_reason(tmp_path: Path) -> None:
    built("base")
    with pytest.raises(ValueError, match="kustomization"):
        Manifests.of(tmp_path)


@pytest.mark.parametrize(
    ("quantity", "expected"), [("16Gi", 16 * 2**30), ("64Mi", 64 * 2**20), ("512", 512)]
)
def test_quantities_are_bytes(quantity: str, expected: int) -> None:
    assert num_bytes(quantity) == expected


def test_only_device_and_size_of_a_config_are_replaced() -> None:
    config = manifests("base").serve_config
    ours = substituted_config(config)
    assert read_serve_text(yaml.safe_dump(ours)), "its applications still agree"
    for before, after in zip(config["applications"], ours["applications"], strict=True):
        assert after["deployments"] == before["deployments"]
        for name in {"target", "draft"} & after["args"].keys():
            changed = {
                key
                for key in {**before["args"][name], **after["args"][name]}
                if before["args"][name].get(key) != after["args"][name].get(key)
            }
            assert changed <= {"device", "dtype", "max_model_len", "kv_cache_tokens", "attention"}
    assert "outrider-demo" not in str(config), "the given one stays as it is"


def test_the_job_takes_its_time_and_leaves_the_marks() -> None:
    job = manifests("base").job
    [container] = substituted_job(job, 30.0).spec["containers"]
    *fetched, marked = container["args"][0].strip().splitlines()
    assert [line.split(";")[0] for line in fetched] == ["sleep 15", "sleep 15"]
    assert marked == job.spec["containers"][0]["args"][0].strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("spec", "num_ready", "is_allowed"),
    [
        ({"minAvailable": 1}, 2, True),
        ({"minAvailable": 1}, 1, False),
        ({"minAvailable": "50%"}, 4, False),
        ({"maxUnavailable": 1}, 4, False),
    ],
)
def test_budgets_count_as_kubernetes_counts_them(
    spec: dict[str, object], num_ready: int, is_allowed: bool
) -> None:
    budget = {"spec": {**spec, "selector": {"matchLabels": ROUTER}}}
    assert allows_eviction(budget, ROUTER, num_ready) is is_allowed
    assert allows_eviction(budget, {"outrider/role": "draft"}, 0) is True
