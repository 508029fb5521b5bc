"""Targets come and go with the load under `serve run`, and no stream loses its text."""

from __future__ import annotations

import re
from collections import Counter

import pytest

from loadtest.client.cases import free_cases
from loadtest.client.streams import FaultLoad
from loadtest.service.parts import FaultService
from loadtest.service.replicas import changes, look_at_replicas
from loadtest.service.served import Served
from loadtest.service.watch import Watch
from tests.harness.deployed_demo import DeployedDemo

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT_S = 180.0
WAITS = re.compile(r"to shut down: (\d+) ongoing requests")


def sessions_waited_for(service: Served) -> Counter[tuple[str, int]]:
    """Count, by log of a target, how often it says that so many sessions are waited for."""
    logs = service.folder.glob("ray/session_*/logs/serve/replica_*Target*.log")
    return Counter(
        (log.name, int(number)) for log in logs for number in WAITS.findall(log.read_text())
    )


@pytest.mark.day(2)
def test_a_target_that_leaves_waits_for_its_streams(deployed: DeployedDemo) -> None:
    service = deployed.service
    cases = free_cases(11)  # few would all be on the target that stays, now and then
    with FaultService(service) as watched:
        stay, leave = (FaultLoad(watched.base_url, part) for part in (cases[:6], cases[6:]))
        watch = Watch(0.5, look_at_replicas())
        before = sessions_waited_for(service)
        watch.start()
        try:
            # A crowd of another test may have left two.
            assert watch.wait(lambda sample: sample.is_settled_at(1), LIMIT_S)
            began = len(watch.samples)
            for load in (stay, leave):
                load.prepare()
            known = {line["replica"] for sample in watch.samples for line in sample.load}
            for load in (stay, leave):
                load.start()
            assert watch.wait(lambda sample: sample.num_running("Target") == 2, LIMIT_S)
            leave.stop()
            assert watch.wait(lambda sample: sample.is_settled_at(1), LIMIT_S)
        finally:
            leave.stop()
            stay.stop()
            watch.stop()
        assert [number for _, number in changes(watch.samples[began:], "Target")] == [1, 2, 1]
        waited_for = sessions_waited_for(service) - before
        assert max(number for _, number in waited_for) >= 1
        for load in (stay, leave):
            assert load.take_failures() == []
            assert load.num_answers >= 4
        # What the replicas say of themselves leaves by Ray's own export.
        lines = [line for sample in watch.samples for line in sample.load]
        of_targets = [line for line in lines if line["deployment"] == "Target"]
        assert len({line["replica"] for line in of_targets} - known) == 1
        assert max(float(line.get("kv_use", 0)) for line in of_targets) > 0.02
        assert max(float(line.get("leases", 0)) for line in of_targets) >= 2
        assert {line["deployment"] for line in lines} == {"Target", "Draft", "Constraint"}
