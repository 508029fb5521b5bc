"""A cluster whose controller does not answer, this machine, and how Serve tells a refusal."""

from __future__ import annotations

import os
from unittest.mock import MagicMock

import pytest
import ray
from ray.exceptions import GetTimeoutError

from deployments.config import check
from deployments.config import cluster as cluster_view
from deployments.config.check import CannotServe, refuse_unservable
from deployments.config.cluster import this_machine
from deployments.config.schema import AppConfig
from deployments.config.serve_file import read_serve_file
from loadtest.report.machine import ROOT


@pytest.fixture(scope="module")
def prod() -> AppConfig:
    """Both models with the routers, as in one application."""
    return read_serve_file(ROOT / "configs" / "prod.yaml").config


def test_a_busy_controller_is_told_with_the_wait(
    prod: AppConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    def never(reference: object, *, timeout: float) -> None:
        raise GetTimeoutError("Get timed out: some object(s) not ready.")

    monkeypatch.setattr(cluster_view, "_get_global_client", lambda **options: MagicMock())
    monkeypatch.setattr(ray, "get", never)
    monkeypatch.setattr(ray, "is_initialized", lambda: True)
    monkeypatch.setattr(check, "connected_cluster", this_machine)
    with pytest.raises(CannotServe, match="controller has not said within 15 s"):
        refuse_unservable(prod)


def test_this_machine_is_what_ray_would_find() -> None:
    [node] = this_machine().nodes
    assert node.resources["CPU"] == len(os.sched_getaffinity(0))
    assert node.resources["memory"] > 1e9
