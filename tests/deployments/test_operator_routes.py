"""What operators ask of a router: alive, ready, metrics."""

from __future__ import annotations

import pytest
from http_clients import client_of
from http_fakes import ScriptedGenerator

from models.errors import Unavailable


async def test_a_router_without_a_target_is_alive_and_not_ready():
    generator = ScriptedGenerator(error=Unavailable("no Target replica granted a lease"))
    async with client_of(generator) as client:
        alive = await client.get("/livez")
        ready = await client.get("/readyz")
        health = await client.get("/health")
    assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
    assert ready.status_code == health.status_code == 503
    assert "no Target replica" in ready.json()["reason"]


async def test_a_serving_router_is_ready():
    async with client_of(ScriptedGenerator()) as client:
        assert (await client.get("/readyz")).status_code == 200


async def test_metrics_come_as_prometheus_text():
    async with client_of(ScriptedGenerator(), metrics=lambda: b"a 1\n") as client:
        response = await client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert response.text == "a 1\n"


async def test_metrics_of_other_processes_come_below():
    async def others() -> bytes:
        return b"b 2\n"

    async with client_of(
        ScriptedGenerator(), metrics=lambda: b"a 1\n", other_metrics=others
    ) as client:
        assert (await client.get("/metrics")).text == "a 1\nb 2\n"


@pytest.mark.parametrize("path", ["/livez", "/readyz", "/metrics"])
async def test_operator_routes_are_read_only(path):
    async with client_of(ScriptedGenerator()) as client:
        assert (await client.post(path)).status_code == 405
