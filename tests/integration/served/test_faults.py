"""Processes of the served demo die under streams that must not notice: the trial in small.

The whole of it, every kind of process twenty times over, is
`python -m loadtest faults --set rounds=20`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil
import pytest
import yaml

from loadtest.experiments.trials import FAULTS
from loadtest.frame.experiment import Result
from loadtest.service.parts import FaultService
from loadtest.service.served import Served
from loadtest.trial.events import Strike
from loadtest.trial.scene import Scene, Terms
from loadtest.trial.trial import Place
from tests.harness.held_services import HeldService
from tests.harness.waiting import block_until

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.day(2),
    pytest.mark.timeout(900),
    pytest.mark.usefixtures("deployed"),
]

STRIKES = [
    Strike(way=f"{kind} {name}", kind=kind, signal=name)
    for kind, name in (
        ("target-rank", "KILL"),
        ("constraint-replica", "KILL"),
        ("target-coordinator", "KILL"),
        ("constraint-child", "STOP"),
    )
]
REPLICAS = ("router", "target-coordinator", "draft-coordinator", "constraint-replica")


@dataclass(frozen=True, kw_only=True)
class Here(Place):
    """A service that runs for more tests than this one."""

    service: Served

    @contextlib.contextmanager
    def opened(self, scene: Scene, path: Path, is_clean: Callable[[], bool]) -> Iterator[None]:
        scene.config = yaml.safe_load(path.read_text(encoding="utf-8"))
        scene.service, scene.base_url = self.service, self.service.base_url
        with self._watched(scene):
            yield


@pytest.fixture(scope="module")
def found(held: HeldService) -> Result:
    service = held.get("deployed").service
    trial = replace(FAULTS, place=Here(service=service), events=lambda scene: STRIKES)
    return trial.run(Scene(terms=Terms(**{**FAULTS.terms, "streams": 3})))


def test_every_request_completes_with_its_text_and_everything_is_free_afterwards(
    found: Result,
) -> None:
    assert found.problems == []
    assert sum(sum(row["runs"]["refused"]) for row in found.rows) == 0
    assert found.extra["num_answers"] > len(STRIKES)


def test_the_faults_struck_where_they_hurt(found: Result) -> None:
    """Or the texts above say nothing: a lost target pauses all, a lost constraint replica some."""
    pauses = {
        row["way"]: (row["runs"]["pause_free_s"][0], row["runs"]["pause_constrained_s"][0])
        for row in found.rows
    }
    for kind in ("target-rank", "target-coordinator"):
        assert min(pauses[f"{kind} KILL"]) > 1.0, pauses
    assert pauses["constraint-replica KILL"][1] > 1.0, pauses
    assert list(pauses) == [strike.way for strike in STRIKES]


def test_a_stopped_child_is_ended_by_its_parent(found: Result) -> None:
    stopped = found.extra["events"][-1]
    assert (stopped["event"], stopped["ended_by"]) == ("constraint-child STOP", "supervision")


def test_every_replica_has_a_watchdog(found: Result, held: HeldService) -> None:
    """Serve's checks find a stopped one, but late: new sessions would wait for it until then."""
    with FaultService(held.get("deployed").service) as service:
        block_until(lambda: all(map(_has_watchdog, _replicas(service))))


def _replicas(service: FaultService) -> list[psutil.Process]:
    parts = service.parts()
    return [one for kind in REPLICAS for one in parts[kind]]


def _has_watchdog(replica: psutil.Process) -> bool:
    return any("deployments.serve.watchdog" in child.cmdline() for child in replica.children())


def test_drafts_were_in_use(found: Result) -> None:
    assert found.extra["drafted"]["free-0"] > 0
    assert found.extra["drafted"]["constrained-0"] > 0
