"""Targets come and go with the load under `serve run`, and no stream loses its text."""

from __future__ import annotations

import re
from typing import Any

import pytest

from loadtest.client.cases import free_cases
from loadtest.client.streams import FaultLoad
from loadtest.experiments.trials import FAST_METRICS
from loadtest.report.machine import ROOT
from loadtest.service.parts import FaultService
from loadtest.service.replicas import changes, look_at_replicas
from loadtest.service.served import Served, served
from loadtest.service.watch import Watch

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

LIMIT_S = 180.0
WAITS = re.compile(r"to shut down: (\d+) ongoing requests")


def targets_by_sessions(config: dict[str, Any]) -> None:
    """A second target above nine sessions; back to one at six."""
    [application] = config["applications"]
    [target] = [d for d in application["deployments"] if d["name"] == "Target"]
    target["graceful_shutdown_timeout_s"] = 120
    target["graceful_shutdown_wait_loop_s"] = 0.1  # every session that it waits for is seen
    target["autoscaling_config"] = {
        "min_replicas": 1,
        "max_replicas": 2,
        "look_back_period_s": 11,
        "upscale_delay_s": 1,
        "downscale_delay_s": 2,
        "policy": {
            "policy_function": "deployments.scaling:TargetPolicy",
            "policy_kwargs": {"kv_use": 1.0, "waiting_tokens": 1e9, "sessions": 9},
        },
    }


def sessions_waited_for(service: Served) -> int:
    """The most that a target still had when it was told to stop."""
    logs = service.folder.glob("ray/session_*/logs/serve/replica_*Target*.log")
    counts = [int(count) for log in logs for count in WAITS.findall(log.read_text())]
    return max(counts, default=0)


def test_a_target_that_leaves_waits_for_its_streams() -> None:
    cases = free_cases(11)  # few would all be on the target that stays, now and then
    with (
        served(
            ROOT / "configs" / "demo.yaml", change=targets_by_sessions, environment=FAST_METRICS
        ) as service,
        FaultService(service) as watched,
    ):
        stay, leave = (FaultLoad(watched.base_url, part) for part in (cases[:6], cases[6:]))
        watch = Watch(0.5, look_at_replicas())
        watch.start()
        try:
            for load in (stay, leave):
                load.prepare()
            assert changes(watch.samples, "Target")[0][1] == 1
            for load in (stay, leave):
                load.start()
            assert watch.wait(lambda sample: sample.num_running("Target") == 2, LIMIT_S)
            leave.stop()
            assert watch.wait(lambda sample: sample.is_settled_at(1), LIMIT_S)
        finally:
            leave.stop()
            stay.stop()
            watch.stop()
        assert [number for _, number in changes(watch.samples, "Target")] == [1, 2, 1]
        assert sessions_waited_for(service) >= 1
        for load in (stay, leave):
            assert load.take_failures() == []
            assert load.num_answers >= 4
        # What the replicas say of themselves leaves by Ray's own export.
        lines = [line for sample in watch.samples for line in sample.load]
        of_targets = [line for line in lines if line["deployment"] == "Target"]
        assert len({line["replica"] for line in of_targets}) == 2
        assert max(float(line.get("kv_use", 0)) for line in of_targets) > 0.02
        assert max(float(line.get("leases", 0)) for line in of_targets) >= 2
        assert {line["deployment"] for line in lines} == {"Target", "Draft", "Constraint"}
