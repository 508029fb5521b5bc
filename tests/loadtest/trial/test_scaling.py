"""What a scaling run makes of its samples."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import ServeDeploySchema

from deployments.config.schema import AppConfig
from loadtest.experiments.trials import SCALING, groups, report_replicas, scaling_config
from loadtest.report.machine import ROOT
from loadtest.service.replicas import Sample, changes, drained_sessions, replica_loads
from loadtest.service.watch import Watch
from loadtest.trial.scene import Scene, Terms

EXPORT = """\
# HELP ray_outrider_leases Sessions that hold a place on the replica
# TYPE ray_outrider_leases gauge
ray_outrider_leases{deployment="Target",replica="t1",engine="target"} 3.0
ray_outrider_leases{deployment="Target",replica="t2",engine="target"} 1.0
ray_outrider_leases{deployment="Constraint",replica="c1",engine="constraint"} 2.0
ray_vllm_kv_cache_usage_perc{deployment="Target",replica="t1",engine="target"} 0.12345
ray_vllm_num_requests_running{deployment="Router",replica="r1"} 5.0
# TYPE ray_outrider_pass_seconds_total counter
ray_outrider_pass_seconds_total{deployment="Target",replica="t1",engine="target"} 7.5
ray_serve_num_router_requests_total{deployment="Target"} 9.0
"""


def sample(at_s: float, states: dict[str, int], leases: tuple[int, ...] = ()) -> Sample:
    load: list[dict[str, Any]] = [
        {"deployment": "Target", "replica": f"t{i}", "leases": float(number)}
        for i, number in enumerate(leases)
    ]
    load.append({"deployment": "Draft", "replica": "d", "leases": 9.0})
    return Sample(at_s=at_s, num_streams=3, replicas={"Target": states}, load=load)


def test_loads_are_read_from_rays_export() -> None:
    assert replica_loads(EXPORT) == [
        {"deployment": "Constraint", "replica": "c1", "leases": 2.0},
        {"deployment": "Target", "replica": "t1", "leases": 3.0, "kv_use": 0.123, "pass_s": 7.5},
        {"deployment": "Target", "replica": "t2", "leases": 1.0},
    ]


def test_changes_are_those_of_running_replicas() -> None:
    numbers = [
        sample(0.0, {"RUNNING": 1}),
        sample(1.0, {"RUNNING": 1, "STARTING": 1}),
        sample(2.0, {"RUNNING": 2}),
        sample(3.0, {"RUNNING": 1, "STOPPING": 1}),
        sample(4.0, {"RUNNING": 1}),
    ]
    assert changes(numbers, "Target") == [(0.0, 1), (2.0, 2), (3.0, 1)]


def test_who_stops_has_at_least_the_fewer_sessions() -> None:
    stopping = {"RUNNING": 1, "STOPPING": 1}
    assert drained_sessions([sample(0.0, {"RUNNING": 2}, (3, 4))], "Target") == 0
    assert (
        drained_sessions([sample(0.0, stopping, (3, 2)), sample(1.0, stopping, (5, 1))], "Target")
        == 2
    )
    assert drained_sessions([sample(0.0, stopping, (3,))], "Target") == 0, "one has not reported"


@pytest.mark.parametrize(
    ("numbers", "problems", "is_clean"),
    [
        ([1, 2, 1], [], True),
        ([1, 2, 2], ["the numbers of replicas did not come back"], False),
        ([1, 1, 1], [], False),
        ([1, 2, 1], ["another text"], False),
    ],
)
def test_a_clean_run_goes_up_comes_back_and_fails_nothing(
    numbers: list[int], problems: list[str], is_clean: bool
) -> None:
    scene = Scene(terms=Terms(**SCALING.terms))
    scene.watch = Watch(1.0, float)
    scene.watch.samples = [
        sample(float(at_s), {"RUNNING": number}) for at_s, number in enumerate(numbers)
    ]
    scene.result.problems += problems
    report_replicas(scene)
    assert SCALING.is_clean(scene) is is_clean


def test_the_scaled_config_is_one_that_serve_takes() -> None:
    config = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text())
    scaling_config(config, Terms())
    [application] = ServeDeploySchema.model_validate(config).applications
    assert AppConfig.model_validate(application.args).target.kv_cache_tokens == 4096
    for deployment in application.deployments:
        settings = AutoscalingConfig.model_validate(deployment.autoscaling_config)
        assert (settings.min_replicas, settings.max_replicas) == (1, 2)
        policy = settings.policy.get_policy()
        assert policy.__name__ == (
            "replica_queue_length_autoscaling_policy"
            if deployment.name == "Router"
            else f"{deployment.name}Policy"
        )


def test_every_stream_has_a_case_of_its_own() -> None:
    cases = groups(3)
    assert [len(group) for group in cases] == [3, 6, 6]
    names = [case.name for group in cases for case in group]
    assert len(set(names)) == len(names)
    assert all(any(case.is_constrained for case in group) for group in cases)
