"""The demo with the environment of the pods: log lines and metrics come out at once."""

from __future__ import annotations

import time

import httpx
import pytest

from loadtest.service.parts import FaultService
from loadtest.service.replicas import metrics_port
from loadtest.service.served import Served
from tests.harness.deployed_demo import DeployedDemo

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

WAIT_S = 60.0
REPORTS_S = 1.0  # of `FAST_METRICS`; Ray's default is ten


@pytest.fixture
def service(deployed: DeployedDemo) -> Served:
    return deployed.service


def test_a_line_of_the_log_waits_for_no_others(service: Served) -> None:
    body = {"model": "outrider-demo", "messages": [{"role": "user", "content": "Hello"}]}
    answer = httpx.post(
        f"{service.base_url}/v1/chat/completions",
        json=body | {"max_tokens": 60},
        headers={"x-request-id": "alone"},
        timeout=WAIT_S,
    )
    assert answer.status_code == httpx.codes.OK, answer.text
    time.sleep(1.0)
    [log] = service.folder.rglob("logs/serve/replica_outrider_Router_*.log")
    assert "alone" in log.read_text()
    assert "alone" in service.log()


def test_gauges_stay_in_rays_export_while_they_do_not_change(service: Served) -> None:
    with FaultService(service):
        url = f"http://127.0.0.1:{metrics_port()}/metrics"
        time.sleep(5 * REPORTS_S)
        exported = httpx.get(url, timeout=WAIT_S).text
    for name in ("vllm_num_requests_running", "outrider_user_config_refused"):
        assert f"\nray_{name}{{" in exported, name
