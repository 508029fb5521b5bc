"""What Serve makes of a refused `user_config`, at the start and while a replica serves."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from typing import Any

import pytest
import ray
from ray import serve

from loadtest.report.machine import ROOT
from loadtest.service.cluster import ROUTER, PrivateCluster, private_cluster
from loadtest.service.parts import actors, leave_ray
from loadtest.service.served import Config

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


LIMIT_S = 180.0
REFUSED = "user_config: only Router and Draft take one"


@pytest.fixture
def cluster() -> Iterator[PrivateCluster]:
    with private_cluster(also_importable=(ROOT / "tests" / "harness",)) as cluster:
        cluster.add(ROUTER)
        ray.init(address=cluster.gcs_address(), log_to_driver=False, namespace="faults")
        yield cluster
        leave_ray()


def config(user_config: Any) -> Config:
    constraint: Config = {"name": "Constraint", "ray_actor_options": {"num_cpus": 1}}
    if user_config is not None:
        constraint["user_config"] = user_config
    return {
        "proxy_location": "Disabled",
        "http_options": {},
        "applications": [
            {
                "name": "outrider",
                "route_prefix": None,
                "import_path": "user_config_app:build",
                "deployments": [constraint],
            }
        ],
    }


def wait_status(wanted: str) -> str:
    """Wait until the application has this status; what its deployment says then."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        application = serve.status().applications.get("outrider")
        if application is not None and application.status == wanted:
            return application.deployments["Constraint"].message
        assert time.monotonic() < deadline, application
        time.sleep(0.1)


def pid() -> int:
    [replica] = [part for part in actors() if part.kind == "constraint-replica"]
    return replica.pid


def test_a_refused_user_config_stops_a_start_and_no_replica_that_serves(
    cluster: PrivateCluster,
) -> None:
    cluster.deploy(config({"max_sessions": 3}))
    assert REFUSED in wait_status("DEPLOY_FAILED")
    cluster.deploy(config(None))
    wait_status("RUNNING")
    first = pid()
    cluster.deploy(config({"max_sessions": 3}))
    wait_status("RUNNING")
    assert pid() == first
    os.kill(first, signal.SIGKILL)
    deadline = time.monotonic() + LIMIT_S
    while not (found := [p for p in actors() if p.kind == "constraint-replica" and p.pid != first]):
        assert time.monotonic() < deadline, "nobody took the lost replica's place"
        time.sleep(0.1)
    wait_status("RUNNING")
    assert pid() == found[0].pid, "its replacement did not stay"
