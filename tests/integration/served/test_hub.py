"""A service whose target is named as on the hub: its nodes fetch it, from a hub of our own."""

from __future__ import annotations

import httpx
import pytest

from tests.fakes.hub import COMMIT, REPOSITORY
from tests.harness.deployed_demo import DeployedDemo

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_target_of_the_hub_is_fetched_and_serves(deployed: DeployedDemo) -> None:
    body = {"model": "outrider-demo", "prompt": "The cat", "seed": 1, "max_tokens": 12}
    service, folder = deployed.service, deployed.hub_folder / "hub"
    answer = httpx.post(f"{service.base_url}/v1/completions", json=body, timeout=60)
    assert answer.status_code == 200
    assert answer.json()["usage"]["completion_tokens"] == 12
    assert deployed.asked.count("model.safetensors") == 1
    line = f"of {REPOSITORY} at {COMMIT[:12]} are to be downloaded into {folder}"
    assert line in service.log()
