"""A new cluster gets configs that cannot be served whole: Serve says why, and the rest serves."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import yaml
from ray import serve

from loadtest.report.machine import ROOT
from loadtest.service.cluster import ROUTER, TARGET
from loadtest.service.parts import actors
from loadtest.service.served import Config, section
from tests.harness.held_services import HeldService
from tests.harness.production import HEADERS, LIMIT_S, Production, wait_for

pytestmark = [
    pytest.mark.ray,
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.usefixtures("production"),
]

REFUSED = "user_config: only Router and Draft take one"
QUESTION = {"role": "user", "content": "Write a short story."}


@pytest.fixture(scope="module")
def fresh(held: HeldService) -> Iterator[Production]:
    """A cluster with a router's node, to which nothing else was deployed than by these tests."""
    if not held.get("production").is_new:
        held.end()
    cluster: Production = held.get("production")
    cluster.add(ROUTER)
    with cluster.connected():
        yield cluster


def status_of(application: str) -> str:
    found = serve.status().applications.get(application)
    return "" if found is None else found.status


def wait_status(application: str, wanted: str) -> None:
    wait_for(lambda: status_of(application) == wanted, f"{application} is not {wanted}", LIMIT_S)


def replica() -> int:
    [one] = [part for part in actors() if part.kind == "constraint-replica"]
    return one.pid


def constraint_alone(cluster: Production, user_config: Any) -> Config:
    """An application that starts fast: the constraint service, with a `user_config`."""
    constraint: Config = {"name": "Constraint", "ray_actor_options": {"num_cpus": 1}}
    if user_config is not None:
        constraint["user_config"] = user_config
    application = {
        "name": "outrider",
        "route_prefix": None,
        "import_path": "user_config_app:build",
        "deployments": [constraint],
    }
    return cluster.config() | {"applications": [application]}


def test_a_refused_user_config_stops_a_start_and_no_replica_that_serves(fresh: Production) -> None:
    def said() -> str:
        return serve.status().applications["outrider"].deployments["Constraint"].message

    fresh.cluster.deploy(constraint_alone(fresh, {"max_sessions": 3}))
    wait_status("outrider", "DEPLOY_FAILED")
    assert REFUSED in said()
    fresh.cluster.deploy(constraint_alone(fresh, None))
    wait_status("outrider", "RUNNING")
    first = replica()
    fresh.cluster.deploy(constraint_alone(fresh, {"max_sessions": 3}))
    wait_status("outrider", "RUNNING")
    assert replica() == first
    os.kill(first, signal.SIGKILL)

    def replaced() -> list[int]:
        found = [part.pid for part in actors() if part.kind == "constraint-replica"]
        return [pid for pid in found if pid != first]

    wait_for(lambda: bool(replaced()), "nobody took the lost replica's place")
    [second] = replaced()
    wait_status("outrider", "RUNNING")
    assert replica() == second, "its replacement did not stay"


def test_serve_status_says_what_the_config_lacks(fresh: Production) -> None:
    config = yaml.safe_load((ROOT / "configs" / "prod.yaml").read_text(encoding="utf-8"))
    for name in ("proxy_location", "http_options"):  # Serve keeps those that it began with
        config[name] = fresh.config()[name]
    fresh.cluster.deploy(config)
    for name in ("outrider", "target", "draft"):
        wait_status(name, "DEPLOY_FAILED")
        message = serve.status().applications[name].message
        assert "cannot be served here: " in message
        assert "no such folder: 'Qwen/Qwen2.5-" in message
        assert "Traceback" not in message


def test_a_draft_that_cannot_be_served_holds_nothing_up(fresh: Production) -> None:
    """Its model is missing, and there is no node for it."""
    config = fresh.config()
    section(config, "draft")["model_path"] = "models/demo/nothing"
    fresh.add(TARGET)
    fresh.cluster.deploy(config)
    fresh.cluster.wait_healthy(LIMIT_S)
    assert status_of("draft") == "DEPLOY_FAILED"
    assert "draft.model_path: no such folder" in serve.status().applications["draft"].message
    body = {"model": "outrider-demo", "messages": [QUESTION], "max_tokens": 8}
    url = f"{fresh.cluster.base_url}/v1/chat/completions"
    answer = httpx.post(url, json=body, headers=HEADERS, timeout=60)
    assert answer.json()["usage"]["completion_tokens"] == 8
