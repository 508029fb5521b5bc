"""What operators ask of a router: alive, ready, metrics."""

from __future__ import annotations

import asyncio

import pytest

from deployments.api.cached_value import CachedValue
from models.protocol.errors import Unavailable
from tests.fakes.http import ScriptedGenerator
from tests.harness.http_clients import client_of


async def test_a_router_without_a_target_is_alive_and_not_ready():
    generator = ScriptedGenerator(error=Unavailable("no Target replica granted a lease"))
    async with client_of(generator) as client:
        alive = await client.get("/livez")
        ready = await client.get("/readyz")
        health = await client.get("/health")
    assert (alive.status_code, alive.json()) == (200, {"status": "ok"})
    assert ready.status_code == health.status_code == 503
    assert "no Target replica" in ready.json()["reason"]


async def test_metrics_come_as_prometheus_text_those_of_other_processes_below():
    async def others() -> bytes:
        return b"b 2\n"

    async with client_of(
        ScriptedGenerator(), metrics=lambda: b"a 1\n", other_metrics=others
    ) as client:
        response = await client.get("/metrics")
    assert response.status_code == 200
    assert response.headers["content-type"].startswith("text/plain; version=")
    assert response.text == "a 1\nb 2\n"


async def test_many_scrapes_share_one_look_at_the_replicas():
    num_looks = 0

    async def others() -> bytes:
        nonlocal num_looks
        num_looks += 1
        await asyncio.sleep(0.05)
        return b"b 2\n"

    async with client_of(ScriptedGenerator(), other_metrics=others) as client:
        together = await asyncio.gather(*(client.get("/metrics") for _ in range(20)))
        again = await client.get("/metrics")
    assert {response.text for response in (*together, again)} == {"b 2\n"}
    assert num_looks == 1


async def test_a_scraper_that_leaves_stops_no_other():
    looks: list[asyncio.Event] = []
    has_begun = asyncio.Event()

    async def others() -> bytes:
        looks.append(asyncio.Event())
        if len(looks) == 1:
            has_begun.set()
            await looks[0].wait()  # for ever
        return b"b 2\n"

    async with client_of(ScriptedGenerator(), other_metrics=others) as client:
        first = asyncio.create_task(client.get("/metrics"))
        await has_begun.wait()
        second = asyncio.create_task(client.get("/metrics"))
        await asyncio.sleep(0)
        first.cancel()
        assert (await second).text == "b 2\n"


async def test_a_kept_value_is_made_anew_when_it_is_old():
    now_s, made = 0.0, []

    async def make() -> int:
        made.append(now_s)
        if len(made) == 2:
            raise ValueError("no replica")
        return len(made)

    kept = CachedValue(make, keep_s=1.0, clock=lambda: now_s)
    assert [await kept.get(), await kept.get()] == [1, 1]
    now_s = 1.0
    with pytest.raises(ValueError, match="no replica"):
        await kept.get()
    assert await kept.get() == 3
    now_s = 1.9
    assert await kept.get() == 3
