"""A rehearsal reads manifests, replaces what it names, keeps KubeRay's rules, and finds outages.

It finds what ends in an outage before it starts anything. `before/` has the manifests of a commit
that nobody could have installed, drained or changed, without what no rule reads.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from deployments.config.serve_file import read_serve_text
from loadtest.experiments.rehearse import REHEARSE, obstacles
from loadtest.rehearse.faults import faults_of, weight_bytes
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


BEFORE = Path(__file__).parent / "before"


def before(name: str) -> Manifests:
    return Manifests(list(yaml.safe_load_all((BEFORE / f"{name}.yaml").read_text())))


FOUND = {
    "base": [
        "first install",
        *("drain head", "drain router", "drain target"),  # by their budgets
        "lose head",
        *("drain router", "drain draft", "drain target"),  # by their drain time
        *("lose target", "drain target"),  # by their time to load
        *("lose router", "lose router"),  # with all routers, with all constraint replicas
        "key",
    ],
    "one-gpu": [
        *("first install", "endpoints", "drain head", "drain gpu", "lose head"),
        *("drain gpu", "drain gpu", "key"),
    ],
}


@pytest.mark.parametrize("name", FOUND)
def test_it_finds_all_of_a_first_release(name: str) -> None:
    """Each begins with its event, and who goes."""
    assert [one.partition(":")[0] for one in faults_of(before(name))] == FOUND[name]


@pytest.mark.parametrize("folder", ["base", "overlays/one-gpu"])
def test_the_manifests_have_none(folder: str) -> None:
    assert faults_of(manifests(folder)) == []


def test_a_target_that_is_killed_before_its_streams_end_is_found() -> None:
    found = manifests("base")
    [target] = [pod for pod in found.pods() if pod.group == "target"]
    target.spec["terminationGracePeriodSeconds"] = 90
    assert [one.partition(":")[0] for one in faults_of(found)] == ["drain target", "drain target"]


def test_a_target_that_leaves_before_the_next_has_loaded_is_found() -> None:
    found = manifests("base")
    [target] = [pod for pod in found.pods() if pod.group == "target"]
    target.spec["terminationGracePeriodSeconds"] = 1000  # above the longest stream
    [fault] = faults_of(found)
    assert fault.startswith("drain target: the only target takes some 174 s to load, and the old ")
    assert "leaves after 100 s" in fault


def test_it_says_which_value_and_which_limit() -> None:
    found = " ".join(faults_of(before("base")))
    for words in (
        "the budget outrider-router never allows it",
        "streams may last 900 s, and its processes are killed after 30 s",
        "takes some 174 s to load, and streams wait router.timeouts.failover_s = 120 s",
        "replaces Draft and Target too, as they are in its application, outrider",
    ):
        assert words in found


def test_a_name_says_how_large_a_model_is() -> None:
    names = ("Qwen/Qwen2.5-72B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", "/models/mine")
    assert [weight_bytes(name) for name in names] == [144e9, 1e9, 0.0]
