"""A cluster refuses a config by what its nodes announce, unless it may grow."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from deployments.config.check import CannotServe, refuse_unservable
from deployments.config.cluster import connected_cluster, deployed_overrides
from deployments.config.schema import AppConfig
from deployments.config.serve_file import read_serve_file
from loadtest.report.machine import ROOT
from loadtest.service.cluster import Role
from tests.harness.private_serve import private_ray

pytestmark = pytest.mark.ray

DEMO = ROOT / "models" / "demo"
GPUS, CPUS = 4, 8


@pytest.fixture(scope="module")
def prod() -> AppConfig:
    """Both models with the routers, as in one application."""
    return read_serve_file(ROOT / "configs" / "prod.yaml").config


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A node that announces GPUs and a label and has neither."""
    with private_ray(Role("target", num_cpus=CPUS, num_gpus=GPUS)) as address:
        yield address


def test_nodes_count_by_what_they_announce(address: str) -> None:
    cluster = connected_cluster()
    assert (cluster.total("GPU"), cluster.total("CPU")) == (GPUS, CPUS)
    assert cluster.nodes[0].has({"outrider/role": "target"})
    assert not cluster.nodes[0].has({"outrider/role": "draft"})
    assert not cluster.may_grow


def test_build_refuses_what_the_cluster_lacks(address: str, prod: AppConfig) -> None:
    """Without the file's own placement: what follows from `args` alone."""
    assert deployed_overrides(prod) == []
    refusal = r"5 GPUs \(Target 4, Draft 1\), there are 4; .*Qwen2\.5-72B"
    with pytest.raises(CannotServe, match=refusal):
        refuse_unservable(prod)


def test_a_cluster_that_may_grow_is_waited_for(
    address: str, prod: AppConfig, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    config = AppConfig.model_validate(
        {
            "target": {"model_path": str(DEMO / "target"), "device": "cuda", "max_model_len": 64},
            "draft": {
                "model_path": str(DEMO / "draft"),
                **{"device": "cuda", "max_model_len": 64, "tensor_parallel_size": 4},
            },
        }
    )
    with pytest.raises(CannotServe, match="it needs 5 GPUs"):
        refuse_unservable(config)
    monkeypatch.setenv("RAY_USAGE_STATS_KUBERAY_IN_USE", "1")
    assert connected_cluster().may_grow
    refuse_unservable(config)
    with pytest.raises(CannotServe, match="no such folder") as caught:
        refuse_unservable(prod)
    assert "GPUs" not in str(caught.value)


def test_the_command_looks_at_a_cluster(address: str) -> None:
    ended = subprocess.run(
        [
            *(sys.executable, "-m", "deployments.config", "--check", "configs/prod.yaml"),
            *("--address", address),
        ],
        cwd=ROOT,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert ended.returncode == 1
    [refusal] = ended.stderr.splitlines()
    assert "it needs 5 GPUs (Target 4, Draft 1), there are 4" in refusal
    assert "outrider/role=router (Router)" in refusal
    assert "role=target" not in refusal
    assert "no such folder" not in refusal, "the nodes may have what this machine has not"
    assert "note: on this machine target.model_path: no such folder" in ended.stdout
