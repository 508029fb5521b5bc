"""Ray Serve in a cluster of its own, for tests that speak to deployments directly."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
import ray
from ray import serve
from ray.serve import Application

from loadtest.report.machine import ROOT
from loadtest.service.cluster import Role, private_cluster


@contextlib.contextmanager
def private_ray(head: Role, *also_importable: Path) -> Iterator[str]:
    """Connect this process to a cluster of one node until the block ends; yield its address."""
    with private_cluster(head, also_importable=also_importable, has_dashboard=False) as cluster:
        ray.init(address=cluster.gcs_address(), log_to_driver=False)
        try:
            yield cluster.gcs_address()
        finally:
            ray.shutdown()


@contextlib.contextmanager
def private_serve(num_cpus: int, *also_importable: Path) -> Iterator[None]:
    """Serve without an HTTP proxy until the block ends; nobody else's Ray is joined."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_ENABLE_UV_RUN_RUNTIME_ENV", "0")
        patch.setenv("RAY_worker_niceness", "0")  # else a busy core beside it stalls its ranks
        with private_ray(Role("", num_cpus), ROOT / "tests", *also_importable):
            serve.start(proxy_location="Disabled")
            try:
                yield
            finally:
                serve.shutdown()


@contextlib.contextmanager
def applications(found: Mapping[str, Application]) -> Iterator[None]:
    """Run these applications, by name, in the Serve that there is, until the block ends."""
    try:
        for name, application in found.items():
            serve.run(application, name=name, route_prefix=None, blocking=False)
        yield
    finally:
        for name in found:
            serve.delete(name)
