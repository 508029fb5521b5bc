"""What Ray says of machines: the connected cluster, or this machine as Ray would announce it.

Also which config file the application that is being built comes from. Uses some of Ray's internals
(pinned version), because the public interface has no words for these.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import ray
from ray._private.resource_and_label_spec import ResourceAndLabelSpec
from ray.autoscaler.v2.utils import is_autoscaler_v2
from ray.exceptions import GetTimeoutError
from ray.serve.context import _get_global_client

from deployments.config.schema import AppConfig
from deployments.config.shortages import Cluster, Node

_CONTROLLER_TIMEOUT_S = 15.0
# Set by KubeRay in every container, and by Ray where nodes come from a provider of node groups.
_KUBERAY = "RAY_USAGE_STATS_KUBERAY_IN_USE"
_NODE_GROUP = "ray.io/node-group"


def this_machine() -> Cluster:
    """A cluster of this machine alone, as `ray.init` would find it."""
    found = ResourceAndLabelSpec().resolve(is_head=True)
    resources = {kind: float(n) for kind, n in found.to_resource_dict().items()}
    return Cluster(nodes=[Node(resources=resources, labels=dict(found.labels or {}))])


def connected_cluster() -> Cluster:
    """The living nodes of the cluster that this process is connected to.

    It may grow where an autoscaler runs or nodes are pods: those that are asked for are started
    later, or are starting now.
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
    return Cluster(nodes=nodes, may_grow=may_grow)


def deployed_overrides(config: AppConfig) -> list[Mapping[str, Any]]:
    """The `deployments:` section of the deployed file whose `args` are `config`; may be empty.

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
    for app in apps.values():
        content = app.model_dump(exclude_unset=True)
        try:
            deployed = AppConfig.model_validate(content.get("args") or {})
        except ValueError:
            continue  # somebody else's application
        if deployed.model_dump() == config.model_dump():
            return list(content.get("deployments") or [])
    return []
