"""A service whose target is named as on the hub: its nodes fetch it, from a hub of our own."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest

from loadtest.report.machine import ROOT
from loadtest.service.served import Config, served
from tests.fakes.hub import COMMIT, REPOSITORY, hub, hub_environment

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


def by_name(config: Config) -> None:
    arguments = config["applications"][0]["args"]
    arguments["target"]["model_path"] = REPOSITORY
    arguments["target"]["revision"] = "v1"


def test_a_target_of_the_hub_is_fetched_and_serves(tmp_path: Path) -> None:
    asked: list[str] = []
    body = {"model": "outrider-demo", "prompt": "The cat", "seed": 1, "max_tokens": 12}
    with hub(ROOT / "models" / "demo" / "target", asked=asked) as endpoint:
        environment = hub_environment(endpoint, tmp_path)
        with served(
            ROOT / "configs" / "demo.yaml", change=by_name, environment=environment
        ) as service:
            answer = httpx.post(f"{service.base_url}/v1/completions", json=body, timeout=60)
            log = service.log()
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 12
    assert asked.count("model.safetensors") == 1
    assert f"of {REPOSITORY} at {COMMIT[:12]} are to be downloaded into {tmp_path / 'hub'}" in log
