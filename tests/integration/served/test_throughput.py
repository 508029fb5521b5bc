"""The demo with the environment of the pods: leases go by gRPC, logs and metrics come out."""

from __future__ import annotations

import json
import time
from typing import Any

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


def chat(service: Served, request_id: str, **fields: Any) -> dict[str, Any]:
    body = {"model": "outrider-demo", "messages": [{"role": "user", "content": "Hello"}]}
    answer = httpx.post(
        f"{service.base_url}/v1/chat/completions",
        json=body | {"max_tokens": 60, "seed": 1} | fields,
        headers={"x-request-id": request_id},
        timeout=WAIT_S,
    )
    assert answer.status_code == httpx.codes.OK, answer.text
    content: dict[str, Any] = answer.json()
    return content


def test_text_is_drafted_and_constrained(service: Served) -> None:
    # Long enough for the draft model to be leased and to read the prompt.
    plain = chat(service, "plain", speculation={"k": 3}, max_tokens=400, ignore_eos=True)
    assert plain["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    schema = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    constrained = chat(service, "constrained", structured_outputs={"json": schema})
    assert isinstance(json.loads(constrained["choices"][0]["message"]["content"])["n"], int)


def test_a_line_of_the_log_waits_for_no_others(service: Served) -> None:
    chat(service, "alone")
    time.sleep(1.0)
    [log] = service.folder.rglob("logs/serve/replica_outrider_Router_*.log")
    assert "alone" in log.read_text()
    assert "alone" in service.log()


def test_a_lost_target_is_replaced_under_a_stream(service: Served) -> None:
    whole = chat(service, "whole", max_tokens=200, ignore_eos=True)
    text = ""
    body = {"model": "outrider-demo", "messages": [{"role": "user", "content": "Hello"}]}
    more = {"max_tokens": 200, "seed": 1, "ignore_eos": True, "stream": True}
    with httpx.stream(
        "POST", f"{service.base_url}/v1/chat/completions", json=body | more, timeout=WAIT_S
    ) as stream:
        for number, line in enumerate(stream.iter_lines()):
            if number == 4:
                for process in service.descendants("ServeReplica:outrider:Target"):
                    process.kill()
            if line.startswith("data: {"):
                delta = json.loads(line.removeprefix("data: "))["choices"][0]["delta"]
                text += delta.get("content") or ""
    assert text == whole["choices"][0]["message"]["content"]


def test_gauges_stay_in_rays_export_while_they_do_not_change(service: Served) -> None:
    with FaultService(service):
        url = f"http://127.0.0.1:{metrics_port()}/metrics"
        time.sleep(5 * REPORTS_S)
        exported = httpx.get(url, timeout=WAIT_S).text
    for name in ("vllm_num_requests_running", "outrider_user_config_refused"):
        assert f"\nray_{name}{{" in exported, name
