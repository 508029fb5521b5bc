"""The demo as an operator may have it, all at once: many tests use it, for each start is long.

Its target is a name of the hub. It stands under a prefix, with the pods' environment, beside
monitors, and gets a second target when many ask.
"""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from loadtest.experiments.trials import FAST_METRICS
from loadtest.report.machine import ROOT
from loadtest.service.served import (
    POD_ENVIRONMENT,
    Config,
    Served,
    options,
    section,
    served,
    set_spares,
)
from tests.fakes.hub import REPOSITORY, hub, hub_variables

PREFIX = "/llm"
NUM_ONGOING = 48  # in the router; a crowd fills it and then:
NUM_QUEUED = 16  # in the proxy of Serve; more than begin at once elsewhere
MOST_SESSIONS = 9  # of one target; with more there are two
OF_IMAGE = ("PYTHONPATH", "HF_HOME", "HF_HUB_OFFLINE")  # where it has the repository and models

MONITOR = {
    "name": "monitor",
    "route_prefix": "/monitor",
    "import_path": "deployments.monitor:build",
    "args": {"applications": ["outrider"]},
}
# Watches what is not there.
LOST = MONITOR | {"name": "lost", "route_prefix": "/lost", "args": {"applications": ["none"]}}


@dataclass(frozen=True)
class DeployedDemo:
    """The running service.

    Attributes:
        service: under its prefix.
        root_url: without the prefix.
        asked: names of the files that the hub sent.
        hub_folder: where they were put.
    """

    service: Served
    root_url: str
    asked: list[str]
    hub_folder: Path


def pod_environment() -> dict[str, str]:
    """The environment of the pods of k8s/base, but for what only an image needs."""
    [pods] = yaml.safe_load_all((ROOT / "k8s" / "base" / "rayservice.yaml").read_text())
    head = pods["spec"]["rayClusterConfig"]["headGroupSpec"]["template"]["spec"]
    found = {
        variable["name"]: variable["value"]
        for variable in head["containers"][0]["env"]
        if variable["name"] not in OF_IMAGE
    }
    assert found["RAY_SERVE_THROUGHPUT_OPTIMIZED"] == "1"
    assert POD_ENVIRONMENT.items() <= found.items()
    return found


def _as_deployed(config: Config) -> None:
    [application] = config["applications"]
    application["route_prefix"] = PREFIX
    config["applications"] += [MONITOR, LOST]
    set_spares(config, False)
    section(config, "target").update(model_path=REPOSITORY, revision="v1")
    # New requests outwait the only target on a busy machine too: each is to have its text.
    section(config, "router.timeouts").update(queue_wait_s=180.0, failover_s=180.0)
    limits = {"max_queued_requests": NUM_QUEUED, "max_ongoing_requests": NUM_ONGOING}
    options(config, "Router").update(limits)
    options(config, "Target").update(_targets_by_sessions())


def _targets_by_sessions() -> dict[str, Any]:
    return {
        "graceful_shutdown_timeout_s": 120,
        "graceful_shutdown_wait_loop_s": 0.1,  # every session that it waits for is seen
        "autoscaling_config": {
            "min_replicas": 1,
            "max_replicas": 2,
            "look_back_period_s": 11,
            "upscale_delay_s": 1,
            "downscale_delay_s": 2,
            "policy": {
                "policy_function": "deployments.scaling:TargetPolicy",
                "policy_kwargs": {
                    "kv_use": 1.0,
                    "waiting_tokens": 1e9,
                    "sessions": MOST_SESSIONS,
                },
            },
        },
    }


@contextlib.contextmanager
def deployed_demo() -> Iterator[DeployedDemo]:
    """Serve it on a free port, with a private Ray and a hub, until the block ends."""
    asked: list[str] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        hub(ROOT / "models" / "demo" / "target", asked=asked) as endpoint,
        served(
            ROOT / "configs" / "demo.yaml",
            change=_as_deployed,
            environment={
                **pod_environment(),
                **FAST_METRICS,
                **hub_variables(endpoint, Path(folder)),
            },
        ) as service,
    ):
        yield DeployedDemo(service, service.base_url.removesuffix(PREFIX), asked, Path(folder))
