"""The autoscaling policies: tables, properties, and under Serve's own delays."""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from ray import cloudpickle
from ray.serve._private.autoscaling_state import _resolve_policy_callable
from ray.serve._private.common import DeploymentID, ReplicaID, TimeStampedValue
from ray.serve.autoscaling_policy import _apply_autoscaling_config
from ray.serve.config import AutoscalingConfig, AutoscalingContext
from ray.serve.schema import DeploymentSchema, ServeDeploySchema

from deployments.config.applications import applications_of
from deployments.config.schema import AppConfig
from deployments.scaling import ConstraintPolicy, DraftPolicy, Need, TargetPolicy, decide

NOW_S = 1_000_000.0
LOOK_BACK_S = 30.0
TARGET = DeploymentID("Target", "outrider")

Reports = Sequence[Mapping[str, Sequence[float]] | None]  # of each running replica: name -> values


def context(
    reports: Reports,
    *,
    num_wanted: int | None = None,
    num_requests: float = 0.0,
    age_s: float = 1.0,
    config: AutoscalingConfig | None = None,
    state: dict[str, Any] | None = None,
) -> AutoscalingContext:
    """What Serve would pass; None is a replica that has never reported."""
    replicas = [ReplicaID(f"r{index}", TARGET) for index in range(len(reports))]
    raw: dict[str, dict[ReplicaID, list[TimeStampedValue]]] = {}
    for replica, report in zip(replicas, reports, strict=True):
        for name, values in (report or {}).items():
            first_s = NOW_S - age_s - len(values) + 1
            points = [TimeStampedValue(first_s + i, value) for i, value in enumerate(values)]
            raw.setdefault(name, {})[replica] = points
    means = {
        name: {
            replica: sum(p.value for p in points) / len(points) for replica, points in by.items()
        }
        for name, by in raw.items()
    }
    return AutoscalingContext(
        deployment_id=TARGET,
        deployment_name="Target",
        app_name="outrider",
        current_num_replicas=len(reports),
        target_num_replicas=len(reports) if num_wanted is None else num_wanted,
        running_replicas=replicas,
        total_num_requests=num_requests,
        total_queued_requests=0.0,
        aggregated_metrics=means,
        raw_metrics=raw,  # type: ignore[arg-type]  # invariant
        capacity_adjusted_min_replicas=1,
        capacity_adjusted_max_replicas=8,
        policy_state=state or {},
        last_scale_up_time=None,
        last_scale_down_time=None,
        current_time=NOW_S,
        config=config or AutoscalingConfig(look_back_period_s=LOOK_BACK_S),
    )


def target(kv: float, waiting: float = 0.0) -> dict[str, list[float]]:
    return {"kv_use": [kv], "waiting_tokens": [waiting]}


# --- tables -----------------------------------------------------------------------------------

TARGETS: dict[str, tuple[Reports, int]] = {
    "idle": ([target(0.0)], 1),
    "at the limit": ([target(0.8)], 1),
    "above it": ([target(0.81)], 2),
    "prompts at their limit": ([target(0.1, 1000)], 1),
    "prompts wait": ([target(0.1, 1001)], 2),
    "many prompts wait": ([target(0.1, 3500)], 4),
    "the larger need counts": ([target(0.9, 2500), target(0.9, 0)], 3),
    "one full, one empty": ([target(0.9), target(0.1)], 2),
    "both full": ([target(0.9), target(0.9)], 3),
    "one less would be too full": ([target(0.3), target(0.27)], 2),
    "one less has room to spare": ([target(0.3), target(0.26)], 1),
    "one less, but prompts wait": ([target(0.1, 400), target(0.1, 301)], 2),
    "two less": ([target(0.1), target(0.2), target(0.25)], 1),
    "all idle": ([target(0.0)] * 4, 1),
}


@pytest.mark.parametrize("case", TARGETS)
def test_targets_follow_kv_use_and_waiting_tokens(case: str) -> None:
    reports, wanted = TARGETS[case]
    policy = TargetPolicy(kv_use=0.8, waiting_tokens=1000, spare=0.3)
    assert policy(context(reports)) == (wanted, {})


@pytest.mark.parametrize(
    ("busy", "wanted"),
    [([0.7], 1), ([0.71], 2), ([1.0], 2), ([1.0, 1.0], 3), ([0.25, 0.24], 1), ([0.25, 0.25], 2)],
)
def test_drafts_follow_their_busy_time(busy: list[float], wanted: int) -> None:
    reports = [{"busy": [share]} for share in busy]
    assert DraftPolicy(busy=0.7, spare=0.3)(context(reports)) == (wanted, {})


@pytest.mark.parametrize(
    ("queues", "wanted"), [([16], 1), ([17], 2), ([40], 3), ([11, 0], 1), ([12, 0], 2)]
)
def test_constraint_replicas_follow_their_queue(queues: list[float], wanted: int) -> None:
    reports = [{"queue_length": [length]} for length in queues]
    assert ConstraintPolicy(queue_length=16, spare=0.3)(context(reports)) == (wanted, {})


@pytest.mark.parametrize(("num_requests", "wanted"), [(32, 2), (33, 3), (11.2, 1), (11.3, 2)])
def test_sessions_count_where_a_limit_is_given(num_requests: float, wanted: int) -> None:
    """Those that wait for a place hold no KV and wait in no engine."""
    reports = [target(0.0), target(0.0)]
    policy = TargetPolicy(sessions=16, spare=0.3)
    assert policy(context(reports, num_requests=num_requests)) == (wanted, {})
    assert TargetPolicy(spare=0.3)(context(reports, num_requests=num_requests)) == (1, {})


def test_a_sum_of_shares_that_misses_a_whole_number_is_that_number() -> None:
    load = 0.1 * 3 * 10
    assert load > 3
    assert decide([need(load)], 1, 0.0) == 3
    assert decide([need(load)], 9, 0.0) == 3


def test_up_goes_by_the_mean_and_down_by_the_peak() -> None:
    policy = DraftPolicy(busy=0.5, spare=0.0)
    burst = {"busy": [0.1, 1.0, 0.1, 0.1]}
    assert policy(context([burst])) == (1, {})
    assert policy(context([burst, {"busy": [0.0]}])) == (2, {})
    assert policy(context([{"busy": [0.1, 0.2, 0.1]}, {"busy": [0.0]}])) == (1, {})


SILENT: dict[str, Any] = {
    "never": None,
    "something else": {"other": [0.0]},
    "half of it": {"kv_use": [0.0]},
}


@pytest.mark.parametrize("report", SILENT.values(), ids=SILENT)
def test_a_silent_replica_is_no_reason_for_more_and_one_against_less(report: Any) -> None:
    policy = TargetPolicy(kv_use=0.8, waiting_tokens=1000, spare=0.3)
    assert policy(context([report])) == (1, {})
    assert policy(context([report, target(0.0)])) == (2, {})
    assert policy(context([report, target(0.8)])) == (2, {})
    assert policy(context([report, target(1.0), target(1.0)])) == (3, {})
    assert policy(context([report, target(0.0), target(0.0), target(0.0)])) == (2, {})


def test_an_old_report_is_none() -> None:
    policy = TargetPolicy(kv_use=0.8, waiting_tokens=1000)
    full, empty = [target(1.0)], [target(0.0), target(0.0)]
    assert policy(context(full, age_s=3 * LOOK_BACK_S)) == (2, {})
    assert policy(context(full, age_s=3 * LOOK_BACK_S + 1)) == (1, {})
    assert policy(context(empty, age_s=3 * LOOK_BACK_S)) == (1, {})
    assert policy(context(empty, age_s=3 * LOOK_BACK_S + 1)) == (2, {})


def test_replicas_that_are_starting_are_not_asked_for_again() -> None:
    policy = TargetPolicy(kv_use=0.8, waiting_tokens=1000)
    assert policy(context([target(0.9)], num_wanted=2)) == (2, {})
    assert policy(context([], num_wanted=3, num_requests=500.0)) == (3, {})


@pytest.mark.parametrize("value", [math.nan, math.inf, -5.0, "much", None, True])
def test_a_report_that_makes_no_sense_is_an_empty_one(value: Any) -> None:
    ours = context([{"busy": [0.0]}], num_requests=value)
    ours._aggregated_metrics_value = {"busy": dict.fromkeys(ours.running_replicas, value)}
    assert DraftPolicy(busy=0.7, sessions=4)(ours) == (1, {})


# --- properties -------------------------------------------------------------------------------

loads = st.floats(0.0, 40.0)
spares = st.floats(0.0, 0.9)
counts = st.integers(1, 40)


def need(load: float) -> Need:
    return Need(load, load)


@settings(deadline=None)
@given(st.lists(loads, min_size=1, max_size=3), counts, spares)
def test_enough_for_the_load_and_never_none(load: list[float], num_now: int, spare: float) -> None:
    wanted = decide(map(need, load), num_now, spare)
    assert wanted >= max(1, max(load) - 1e-6)
    assert wanted <= max(num_now, math.ceil(max(load)))
    if wanted < num_now:
        assert max(load) <= wanted * (1 - spare) + 1e-6


@settings(deadline=None)
@given(loads, st.floats(0.0, 10.0), counts, spares)
def test_more_load_never_means_fewer(load: float, more: float, num: int, spare: float) -> None:
    assert decide([need(load)], num, spare) <= decide([need(load + more)], num, spare)
    peaky = Need(load, load + more)
    assert decide([need(load)], num, spare) <= decide([peaky], num, spare)


@settings(deadline=None)
@given(loads, counts, spares)
def test_a_constant_load_is_settled_at_once(load: float, num_now: int, spare: float) -> None:
    settled = decide([need(load)], num_now, spare)
    assert decide([need(load)], settled, spare) == settled


@settings(deadline=None)
@given(st.lists(st.tuples(loads, loads), max_size=3), counts, spares)
def test_each_kind_of_load_can_only_add(
    pairs: list[tuple[float, float]], num_now: int, spare: float
) -> None:
    needs = [Need(min(pair), max(pair)) for pair in pairs]
    alone = [decide([each], num_now, spare) for each in needs]
    assert decide(needs, num_now, spare) == max([1, *alone])


@settings(deadline=None)
@given(st.lists(st.floats(0.0, 1.0), min_size=1, max_size=8), st.floats(0.3, 1.0))
def test_whoever_goes_leaves_room_for_all_kv(use: list[float], kv_use: float) -> None:
    wanted, _ = TargetPolicy(kv_use=kv_use, spare=0.3)(context([target(kv) for kv in use]))
    if wanted < len(use):
        assert sum(use) <= 0.7 * kv_use * wanted + 1e-6


# --- in Serve's hands -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("policy", "limits", "complaint"),
    [
        (TargetPolicy, {"kv_use": 0.0}, "kv_use must be above 0 and at most 1, got 0.0"),
        (TargetPolicy, {"kv_use": 80}, "kv_use must be above 0 and at most 1, got 80"),
        (TargetPolicy, {"waiting_tokens": -1}, "waiting_tokens must be above 0, got -1"),
        (TargetPolicy, {"waiting_tokens": None}, "waiting_tokens must be a number, got None"),
        (TargetPolicy, {"sessions": 0}, "sessions must be above 0, got 0"),
        (TargetPolicy, {"spare": 1.0}, "spare must be at least 0 and below 1, got 1.0"),
        (TargetPolicy, {"spare": -0.1}, "spare must be at least 0 and below 1, got -0.1"),
        (TargetPolicy, {"busy": 0.5}, "unknown key 'busy', there are kv_use, waiting_tokens,"),
        (DraftPolicy, {"busy": 1.01}, "busy must be above 0 and at most 1"),
        (DraftPolicy, {"busy": "0.7"}, "busy must be a number, got '0.7'"),
        (DraftPolicy, {"busy": True}, "busy must be a number, got True"),
        (ConstraintPolicy, {"queue_length": math.inf}, "queue_length must be a number, got inf"),
    ],
)
def test_with_a_wrong_limit_nothing_is_scaled_and_the_log_says_why(
    policy: Any, limits: dict[str, Any], complaint: str, caplog: pytest.LogCaptureFixture
) -> None:
    """An exception would make Serve's controller try for ever, and scale no application."""
    with caplog.at_level(logging.ERROR, logger="ray.serve"):
        made = policy(**limits)
    assert made.complaint.startswith(f"policy_kwargs: {complaint}")
    assert made.complaint in caplog.text
    full = {"kv_use": [1.0], "waiting_tokens": [1e9], "busy": [1.0], "queue_length": [1e9]}
    assert made(context([full], num_wanted=2, num_requests=1e6)) == (2, {})


@pytest.mark.parametrize("policy", [TargetPolicy, DraftPolicy, ConstraintPolicy])
def test_limits_at_the_edge_are_taken(policy: Any) -> None:
    edge = dict.fromkeys(policy.defaults, 1.0) | {"spare": 0.0}
    for limits in ({}, {"sessions": None}, edge):
        assert policy(**limits).complaint == ""


def config(policy: str, **kwargs: Any) -> AutoscalingConfig:
    return AutoscalingConfig.model_validate(
        {
            "min_replicas": 1,
            "max_replicas": 3,
            "look_back_period_s": LOOK_BACK_S,
            "policy": {"policy_function": f"deployments.scaling:{policy}", "policy_kwargs": kwargs},
        }
    )


@pytest.mark.parametrize(
    ("policy", "report"), [("TargetPolicy", "kv_use"), ("DraftPolicy", "busy")]
)
def test_serve_hands_the_limits_on(policy: str, report: str) -> None:
    made = _resolve_policy_callable(config(policy, **{report: 0.25}).policy)
    reports = [{"kv_use": [0.7], "waiting_tokens": [0.0], "busy": [0.7]}]
    assert cloudpickle.loads(cloudpickle.dumps(made))(context(reports)) == (3, {})


def test_serves_delays_hold_for_our_policies() -> None:
    """A decision must stand for so long; with a delay of 0 it counts at once."""
    full, empty = [target(1.0)], [target(0.0), target(0.0)]
    for reports, delay, decided in (
        (full, "upscale_delay_s", 2),
        (empty, "downscale_delay_s", 1),
    ):
        for delay_s, expected in ((0.0, decided), (1e6, len(reports))):
            settings = config("TargetPolicy").model_copy(update={delay: delay_s})
            policy = _apply_autoscaling_config(_resolve_policy_callable(settings.policy))
            num_wanted, _ = policy(context(reports, config=settings))
            assert num_wanted == expected, (delay, delay_s)


# --- the shipped configs ----------------------------------------------------------------------

CONFIGS = Path(__file__).resolve().parents[2] / "configs"


def prod(text: str | None = None) -> tuple[AppConfig, dict[str, DeploymentSchema]]:
    content = yaml.safe_load(text or (CONFIGS / "prod.yaml").read_text())
    deployments = {
        deployment.name: deployment
        for application in ServeDeploySchema.model_validate(content).applications
        for deployment in application.deployments
    }
    return applications_of(content).config, deployments


def test_every_kind_has_its_policy_with_limits_below_what_a_replica_takes() -> None:
    args, deployments = prod()
    assert args.draft is not None
    takes = {
        "Target": args.target.max_num_seqs,
        "Draft": args.draft.max_num_seqs,
        "Constraint": args.constraint.max_sessions,
    }
    for name, num_sessions in takes.items():
        policy = AutoscalingConfig.model_validate(deployments[name].autoscaling_config).policy
        assert policy.policy_function == f"deployments.scaling:{name}Policy"
        made = _resolve_policy_callable(policy)
        assert isinstance(made._sessions, int)
        assert made._sessions < num_sessions, "or its queue is never seen"
        assert made.complaint == ""
        assert not policy.policy_kwargs.items() & made.defaults.items(), "these are defaults"
    router = AutoscalingConfig.model_validate(deployments["Router"].autoscaling_config)
    assert router.get_target_ongoing_requests() < args.router.max_sessions


def test_one_line_gives_a_second_draft() -> None:
    """The line that the config's own head names."""
    text = (CONFIGS / "prod.yaml").read_text()
    named = re.search(r"# To scale the draft from 1 to 2: deployments, Draft, (\w+)\.", text)
    assert named is not None
    before, draft = text.split("- name: Draft\n")
    changed = re.sub(rf"\b{named[1]}: 1 ", f"{named[1]}: 2 ", draft, count=1)
    assert sum(a != b for a, b in zip(draft.split("\n"), changed.split("\n"), strict=True)) == 1
    _, deployments = prod(before + "- name: Draft\n" + changed)
    scaling = AutoscalingConfig.model_validate(deployments["Draft"].autoscaling_config)
    assert (scaling.min_replicas, scaling.max_replicas) == (2, 2)
