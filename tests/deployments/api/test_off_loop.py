"""Computing beside the event loop: one at a time, shortest first, and never without an end."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from deployments.api import http
from deployments.api.off_loop import OffLoop
from models.protocol.errors import InternalError, Overloaded
from tests.fakes.http import ScriptedGenerator
from tests.harness.http_clients import client_of


async def until_waiting(off_loop: OffLoop, num_waiting: int) -> None:
    async with asyncio.timeout(5):
        while len(off_loop._waiting) < num_waiting:  # noqa: ASYNC110
            await asyncio.sleep(0)


def stops() -> None:
    next(iter(()))


async def test_an_iterator_that_ends_early_is_an_error_and_not_the_end_of_waiting():
    async with asyncio.timeout(5):
        with pytest.raises(InternalError, match="iterator"):
            await OffLoop(timeout_s=10).run(1, stops)


async def test_a_request_whose_reading_ends_early_is_answered(monkeypatch):
    monkeypatch.setattr(http, "parse", lambda body, schema: stops())
    async with asyncio.timeout(5), client_of(ScriptedGenerator()) as client:
        response = await client.post("/v1/completions", content=b" " * 20_000)
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "internal_error"


async def test_one_at_a_time_and_the_shortest_first():
    off_loop = OffLoop(timeout_s=10)
    gate = threading.Event()
    order: list[Any] = []
    running: list[Any] = []

    def work(name: str) -> str:
        assert running == []
        running.append(name)
        gate.wait(5)
        order.append(running.pop())
        return name

    first = asyncio.create_task(off_loop.run(1000, work, "first"))
    await asyncio.sleep(0.01)
    later = [
        asyncio.create_task(off_loop.run(size, work, name))
        for size, name in ((300, "long"), (20, "short"), (300, "long too"))
    ]
    await until_waiting(off_loop, 3)
    gate.set()
    assert await asyncio.gather(first, *later) == ["first", "long", "short", "long too"]
    assert order == ["first", "short", "long", "long too"]


async def test_what_is_cancelled_before_its_turn_does_not_run_and_holds_nobody_up():
    off_loop = OffLoop(timeout_s=10)
    gate = threading.Event()
    ran: list[Any] = []
    first = asyncio.create_task(off_loop.run(1, gate.wait, 5))
    await asyncio.sleep(0.01)
    left = asyncio.create_task(off_loop.run(1, ran.append, "left"))
    stayed = asyncio.create_task(off_loop.run(2, ran.append, "stayed"))
    await until_waiting(off_loop, 2)
    left.cancel()
    gate.set()
    await asyncio.gather(first, stayed)
    assert ran == ["stayed"]
    await off_loop.run(1, ran.append, "after")
    assert ran == ["stayed", "after"]


async def test_a_turn_that_comes_just_as_one_leaves_goes_to_the_next():
    off_loop = OffLoop(timeout_s=10)
    gate = threading.Event()
    ran: list[Any] = []

    async def finish_and_cancel() -> None:
        await off_loop.run(1, gate.wait, 5)
        left.cancel()  # it has its turn, and has not noticed yet

    first = asyncio.create_task(finish_and_cancel())
    await asyncio.sleep(0.01)
    left = asyncio.create_task(off_loop.run(1, ran.append, "left"))
    stayed = asyncio.create_task(off_loop.run(2, ran.append, "stayed"))
    await until_waiting(off_loop, 2)
    gate.set()
    async with asyncio.timeout(5):
        await asyncio.gather(first, stayed)
    assert left.cancelled()
    assert ran == ["stayed"]


async def test_waiting_has_a_limit():
    off_loop = OffLoop(timeout_s=0.05)
    gate = threading.Event()
    first = asyncio.create_task(off_loop.run(1, gate.wait, 5))
    with pytest.raises(Overloaded, match=r"of 70000 bytes was not done within 0\.05 s"):
        await off_loop.run(70_000, gate.wait, 5)
    with pytest.raises(Overloaded):
        await first
    gate.set()


async def test_errors_are_those_of_the_function():
    with pytest.raises(ZeroDivisionError):
        await OffLoop(timeout_s=5).run(1, divmod, 1, 0)
