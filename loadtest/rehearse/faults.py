"""Finds outages that manifests have in them, before anything is started.

Each rule is one of KubeRay, Kubernetes, Ray or Serve. A rehearsal of manifests that break one would
wait in vain.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from deployments.config.applications import applications_of
from deployments.config.explain import loading_s
from loadtest.rehearse.kuberay import allows_eviction
from loadtest.rehearse.manifests import HEAD, Manifests, PodTemplate, Tree
from router.limits import SessionLimits

_DRAIN = "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S"
_DRAIN_S = 30.0  # of `ray start --block` after SIGTERM, Ray 2.60
_GRACEFUL_S = 20.0  # of Serve, for a deployment that says none
_ENGINES = {"Target", "Draft"}


def faults_of(manifests: Manifests) -> list[str]:
    """Return a sentence for each outage that the manifests have in them."""
    return [fault for rule in _RULES for fault in rule(manifests)]


def _models_awaited(manifests: Manifests) -> Iterator[str]:
    """Find a head that takes the config too early: KubeRay submits it once, whatever Serve says."""
    volumes = {one["name"] for one in manifests.job.container["volumeMounts"]}
    [head, *_] = manifests.pods()
    for waiting in head.spec.get("initContainers", []):
        if volumes & {one["name"] for one in waiting.get("volumeMounts", [])}:
            return
    yield (
        "first install: the head takes the config while the Job still fetches the models; it is "
        "refused, and KubeRay never submits it again (an init container can wait)"
    )


def _reachable(manifests: Manifests) -> Iterator[str]:
    """Find a Service without a pod: none that it selects has a proxy."""
    if not manifests.reachable():
        yield (
            f"endpoints: proxies are {manifests.serve_config.get('proxy_location')}, and the "
            "Service leaves the head out: no pod is left that it sends to"
        )


def _drains_end(manifests: Manifests) -> Iterator[str]:
    """Find budgets that allow no eviction, see `allows_eviction`."""
    for budget in manifests.all_of("PodDisruptionBudget"):
        for pod in manifests.pods():
            if not allows_eviction(budget, pod.labels, pod.replicas):
                yield (
                    f"drain {pod.group}: the budget {budget['metadata']['name']} never allows it; "
                    "only a minAvailable that is a whole number, below the replicas, does here"
                )


def _head_may_go(manifests: Manifests) -> Iterator[str]:
    """Find a head without a memory: raylets that it does not know end themselves."""
    if "gcsFaultToleranceOptions" not in manifests.service["rayClusterConfig"]:
        yield "lose head: without gcsFaultToleranceOptions all pods end with it, and all streams"


def _drains_outlast_streams(manifests: Manifests) -> Iterator[str]:
    """Find drain times below the longest stream: `ray start` kills its processes then."""
    longest_s = float(manifests.serve_config["http_options"]["request_timeout_s"])
    reachable = {pod.group for pod in manifests.reachable()}
    for pod in manifests.pods():
        drain_s = _drain_s(pod)
        has_streams = pod.group in reachable or pod.labels.get("outrider/role") == "target"
        if pod.group != HEAD and has_streams and drain_s < longest_s:
            yield (
                f"drain {pod.group}: streams may last {longest_s:g} s, and its processes are "
                f"killed after {drain_s:g} s ({_DRAIN}, grace period {pod.grace_s:g} s)"
            )


def _streams_outlast_loading(manifests: Manifests) -> Iterator[str]:
    """Find streams that wait for a shorter time than the only target takes to load."""
    applications = applications_of(manifests.serve_config)
    if _num_least(applications.options("Target")) > 1:
        return
    name = str(applications.section("target")["model_path"])
    takes_s = loading_s(weight_bytes(name))
    waits_s = applications.section("router.timeouts").get("failover_s", SessionLimits().failover_s)
    if waits_s < takes_s:
        yield (
            f"lose target: the only one, {name}, takes some {takes_s:.0f} s to load, and streams "
            f"wait router.timeouts.failover_s = {waits_s:g} s: all of them fail"
        )


def _next_loads_in_time(manifests: Manifests) -> Iterator[str]:
    """Find drains in which the only target leaves before the next has loaded.

    Serve starts the next one first. But it tells a replica to end `graceful_shutdown_timeout_s`
    before the drain's deadline, whatever the next one does.
    """
    applications = applications_of(manifests.serve_config)
    options = applications.options("Target")
    if _num_least(options) > 1:
        return
    takes_s = loading_s(weight_bytes(str(applications.section("target")["model_path"])))
    leaves_s = float(options.get("graceful_shutdown_timeout_s", _GRACEFUL_S))
    for pod in manifests.pods():
        drain_s = _drain_s(pod)
        if pod.labels.get("outrider/role") == "target" and drain_s - leaves_s < takes_s:
            yield (
                f"drain {pod.group}: the only target takes some {takes_s:.0f} s to load, and the "
                f"old one leaves after {max(0.0, drain_s - leaves_s):g} s: that is {_DRAIN} or the "
                f"grace period, {drain_s:g} s, less graceful_shutdown_timeout_s, {leaves_s:g} s"
            )


def _drain_s(pod: PodTemplate) -> float:
    """Return the time between a pod's SIGTERM and the end of its processes, s."""
    return min(pod.grace_s, float(pod.environment.get(_DRAIN, _DRAIN_S)))


def _routers_apart(manifests: Manifests) -> Iterator[str]:
    """Find routers that Serve may put on one machine: after a drain it does, and leaves them."""
    applications = applications_of(manifests.serve_config)
    for name in ("Router", "Constraint"):
        options = applications.options(name)
        if _num_least(options) > 1 and options.get("max_replicas_per_node") != 1:
            yield (
                f"lose router: all {name} replicas may be on one machine, as its "
                f"max_replicas_per_node is {options.get('max_replicas_per_node')}"
            )


def _keys_touch_no_gpu(manifests: Manifests) -> Iterator[str]:
    """Find models beside a router: Serve replaces all of an application when one key changes."""
    for application in manifests.serve_config["applications"]:
        engines = _ENGINES & {one["name"] for one in application["deployments"]}
        if "router" in application["args"] and engines:
            yield (
                f"key: one of the router's replaces {' and '.join(sorted(engines))} too, as they "
                f"are in its application, {application['name']}"
            )


def _num_least(options: Tree) -> int:
    scaling = {"min_replicas": 1, **options.get("autoscaling_config", {})}
    return int(options.get("num_replicas", scaling["min_replicas"]))


def weight_bytes(name: str) -> float:
    """Return about how many bytes a model's weights have, by its name: 72B are 144 GB in bfloat16.

    A name without a number of billions gives 0.
    """
    found = re.search(r"(\d+(?:\.\d+)?)B\b", name)
    return float(found[1]) * 2e9 if found else 0.0


_RULES: tuple[Callable[[Manifests], Iterator[str]], ...] = (
    _models_awaited,
    _reachable,
    _drains_end,
    _head_may_go,
    _drains_outlast_streams,
    _streams_outlast_loading,
    _next_loads_in_time,
    _routers_apart,
    _keys_touch_no_gpu,
)
