"""The monitor answers through Serve's proxy while the proxy refuses what goes to the Router."""

from __future__ import annotations

import asyncio
from collections import Counter

import httpx
import pytest

from tests.harness.deployed_demo import NUM_ONGOING, NUM_QUEUED, PREFIX, DeployedDemo

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]

NUM_CLIENTS = NUM_ONGOING + NUM_QUEUED + 8
CHAT = {
    "model": "outrider-demo",
    "messages": [{"role": "user", "content": "Tell me a story."}],
    "max_tokens": 64,
}
WAIT_S = 60.0


async def _until(client: httpx.AsyncClient, path: str, status: int) -> None:
    end = asyncio.get_running_loop().time() + WAIT_S
    while (await client.get(path)).status_code != status:
        assert asyncio.get_running_loop().time() < end, f"{path} was never {status}"
        await asyncio.sleep(0.1)


async def test_metrics_and_health_are_served_while_the_queue_is_full(
    deployed: DeployedDemo,
) -> None:
    ended = asyncio.Event()
    statuses: Counter[int] = Counter()

    async def ask_on() -> None:
        while not ended.is_set():
            answer = await client.post(f"{PREFIX}/v1/chat/completions", json=CHAT)
            statuses[answer.status_code] += 1

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=deployed.root_url, timeout=30, limits=limits) as client:
        await _until(client, "monitor/health", 200)  # it may start after the service
        crowd = [asyncio.create_task(ask_on()) for _ in range(NUM_CLIENTS)]
        try:
            await _until(client, f"{PREFIX}/metrics", 429)
            for path in ("metrics", "health", "readyz") * 4:
                answer = await client.get(f"monitor/{path}")
                assert answer.status_code == 200, (path, answer.text)
        finally:
            ended.set()
            await asyncio.gather(*crowd)
        assert statuses[429] > 0
        page = (await client.get("monitor/metrics")).text
        health = (await client.get("monitor/health")).json()
    assert (health["status"], health["model"]) == ("ok", "outrider-demo")
    # Of routers, engines and the constraint service, each with the replica that said it.
    for name in ("vllm:num_requests_running", "vllm:kv_cache_usage_perc", "outrider:grammar"):
        lines = [line for line in page.splitlines() if line.startswith(name)]
        assert lines, name
        assert all('replica="' in line for line in lines)


async def test_other_paths_of_the_monitor_are_not_there(deployed: DeployedDemo) -> None:
    async with httpx.AsyncClient(base_url=deployed.root_url, timeout=30) as client:
        assert (await client.get("monitor/v1/models")).status_code == 404
        assert (await client.post("monitor/metrics")).status_code == 405


async def test_a_monitor_of_what_is_not_there_says_so(deployed: DeployedDemo) -> None:
    async with httpx.AsyncClient(base_url=deployed.root_url, timeout=30) as client:
        await _until(client, "lost/metrics", 200)
        answer = await client.get("lost/readyz")
    assert answer.status_code == 503
    assert answer.json()["reason"] == "no router answers"
