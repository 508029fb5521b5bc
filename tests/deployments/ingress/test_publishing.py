"""One loop publishes all metrics of a router, and what fails in it keeps nothing else back."""

from __future__ import annotations

import asyncio

import pytest

from tests.deployments.ingress.test_service import config, serving
from tests.harness.waiting import wait_until


async def test_what_fails_to_be_published_keeps_nothing_else_back(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    told: list[str] = []

    def fail() -> None:
        raise RuntimeError("no such figure")

    async with serving(config()) as (client, _, service):
        monkeypatch.setattr(service.planning, "publish", fail)
        monkeypatch.setattr(service.loss_metrics, "publish", lambda: told.append("losses"))
        monkeypatch.setattr(service.planning, "log_gain", fail)
        monkeypatch.setattr(service.traffic, "log", lambda: told.append("line"))
        publishing = asyncio.create_task(service.publish_forever(period_s=1e-4))
        await wait_until(lambda: told.count("line") == 2)
        publishing.cancel()
        assert told[:122] == [*["losses"] * 60, "line"] * 2
        assert caplog.text.count("no such figure") == 2  # of the figures and of the line, once each
        page = await client.get("/metrics")
    assert page.status_code == 200
    assert "vllm:num_requests_running" in page.text
