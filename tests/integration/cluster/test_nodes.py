"""Nodes of a private cluster: all that runs on one ends with it, and it ends with its owner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import ray

from loadtest.report.machine import ROOT
from loadtest.service.cluster import Role, private_cluster
from loadtest.service.parts import family, wait_gone

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

LIMIT_S = 30.0
OWNER = """
import time
import ray
from loadtest.service.cluster import Role, private_cluster

@ray.remote
class Place:
    def pid(self):
        return 1

with private_cluster(Role("", 1), has_dashboard=False) as cluster:
    ray.init(address=cluster.gcs_address(), log_to_driver=False)
    place = Place.remote()
    ray.get(place.pid.remote())
    print(cluster.folder, flush=True)
    time.sleep(600)
"""


@ray.remote
class Place:
    """A process on a node."""

    def pid(self) -> int:
        return os.getpid()


def test_a_stopped_process_ends_with_its_node() -> None:
    """It cannot notice that its raylet is gone.

    This process leaves Ray first, because Ray ends a driver whose raylet is gone without a word.
    """
    with private_cluster(Role("", 1), has_dashboard=False) as cluster:
        ray.init(address=cluster.gcs_address(), log_to_driver=False)
        try:
            place = Place.options(name="place", lifetime="detached").remote()  # type: ignore[attr-defined]
            pid: int = ray.get(place.pid.remote())
            os.kill(pid, signal.SIGSTOP)
        finally:
            ray.shutdown()
        assert pid in {process.pid for process in family(cluster.folder)}
        cluster.close()
        assert pid not in {process.pid for process in family(cluster.folder)}
        assert family(cluster.folder) == []


def test_a_node_ends_with_its_owner() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", OWNER], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as owner:
        assert owner.stdout is not None
        folder = Path(owner.stdout.readline().strip())
        assert family(folder) != []
        owner.kill()
    assert wait_gone(folder, LIMIT_S) == []
