"""Describes the resources to serve on: the connected cluster, or this machine as Ray sees it.

Counts announced resources, not used ones. So an application that takes the place of a running one
is not refused. Nodes may announce GPUs that they do not have (as clusters in tests do). Also which
config file the application that is being built comes from. Uses some of Ray's internals (pinned
version), because the public interface has no words for these.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray._private.resource_and_label_spec import ResourceAndLabelSpec
from ray._raylet import node_labels_match_selector  # type: ignore[attr-defined]  # not in stubs
from ray.autoscaler.v2.utils import is_autoscaler_v2
from ray.exceptions import GetTimeoutError
from ray.serve.context import _get_global_client

from deployments.config.placement import Labels, Resources
from deployments.config.schema import AppConfig
from deployments.config.sections.models import ModelArgs, Models

_CONTROLLER_TIMEOUT_S = 15.0
# Set by KubeRay in every container, and by Ray where nodes come from a provider of node groups.
_KUBERAY = "RAY_USAGE_STATS_KUBERAY_IN_USE"
_NODE_GROUP = "ray.io/node-group"
_MEMORY = ("memory", "object_store_memory")  # Ray's two parts of what was free


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A machine, as it is known to Ray."""

    resources: Resources
    labels: Labels

    @property
    def memory_bytes(self) -> int:
        """The memory that was free when it joined."""
        return int(sum(self.resources.get(kind, 0.0) for kind in _MEMORY))

    def has(self, selector: Labels) -> bool:
        """Return whether the node's labels fit; the empty selector fits every node."""
        return bool(node_labels_match_selector(dict(self.labels), dict(selector)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """The present resources.

    Attributes:
        nodes: the machines.
        may_grow: nodes are added when they are asked for.
        is_elsewhere: who looks at it is on none of its nodes, so files may be there and not here.
        gpu_bytes: memory of each GPU that can be seen from here; empty: none can.
    """

    nodes: Sequence[Node]
    may_grow: bool = False
    is_elsewhere: bool = False
    gpu_bytes: Sequence[int] = ()

    def total(self, kind: str) -> float:
        """Amount of a resource on all nodes together."""
        return sum(node.resources.get(kind, 0.0) for node in self.nodes)


def this_machine() -> Cluster:
    """Return a cluster of this machine alone, as `ray.init` would find it."""
    found = ResourceAndLabelSpec().resolve(is_head=True)
    resources = {kind: float(n) for kind, n in found.to_resource_dict().items()}
    node = Node(resources=resources, labels=dict(found.labels or {}))
    return Cluster(nodes=[node], gpu_bytes=_visible_gpu_bytes())


def connected_cluster(*, is_elsewhere: bool = False) -> Cluster:
    """Return the living nodes of the cluster that this process is connected to.

    It may grow if an autoscaler runs or nodes are pods. Requested nodes are then started later, or
    are starting now.
    """
    nodes = [
        Node(resources=node["Resources"], labels=node.get("Labels") or {})
        for node in ray.nodes()
        if node["Alive"]
    ]
    may_grow = (
        _KUBERAY in os.environ
        or any(_NODE_GROUP in node.labels for node in nodes)
        or bool(is_autoscaler_v2(fetch_from_server=True))
    )
    return Cluster(nodes=nodes, may_grow=may_grow, is_elsewhere=is_elsewhere)


def deployed_overrides(config: Models) -> list[Mapping[str, Any]]:
    """Return the `deployments:` section of the file whose `args` are `config`; may be empty.

    `build` is given `args` alone; Serve's controller has the rest.

    Raises:
        TimeoutError: the controller has not said so in time; the message says how long that was.
    """
    client = _get_global_client(raise_if_no_controller_running=False)
    if client is None:
        return []
    try:
        apps = ray.get(client._controller.get_app_configs.remote(), timeout=_CONTROLLER_TIMEOUT_S)
    except GetTimeoutError:
        raise TimeoutError(
            "Serve's controller has not said within "
            f"{_CONTROLLER_TIMEOUT_S:g} s what is to be deployed; deploy it again"
        ) from None
    tree = AppConfig if isinstance(config, AppConfig) else ModelArgs
    for app in apps.values():
        content = app.model_dump(exclude_unset=True)
        try:
            deployed = tree.model_validate(content.get("args") or {})
        except ValueError:
            continue  # another application
        if deployed.model_dump() == config.model_dump():
            return list(content.get("deployments") or [])
    return []


def _visible_gpu_bytes() -> list[int]:
    """Memory of each of this machine's GPUs, by NVIDIA's library; empty without one."""
    import ray._private.thirdparty.pynvml as nvml

    try:
        nvml.nvmlInit()
    except nvml.NVMLError:
        return []
    try:
        handles = [nvml.nvmlDeviceGetHandleByIndex(i) for i in range(nvml.nvmlDeviceGetCount())]
        return [int(nvml.nvmlDeviceGetMemoryInfo(handle).total) for handle in handles]
    finally:
        nvml.nvmlShutdown()
