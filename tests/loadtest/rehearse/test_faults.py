"""A rehearsal finds what ends in an outage before it starts anything.

`before/` has the manifests of a commit that nobody could have installed, drained or changed,
without what no rule reads.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from loadtest.rehearse.faults import faults_of, weight_bytes
from loadtest.rehearse.manifests import Manifests
from tests.loadtest.rehearse.test_rules import manifests

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
