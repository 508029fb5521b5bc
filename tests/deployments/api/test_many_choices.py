"""Many choices of one request: some at once, the others as these end, each with its own seed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from deployments.api.tenants import Tenant
from tests.fakes.http import ScriptedGenerator, served_model
from tests.harness.http_clients import client_of, events_of

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "seed": 5}


class Slots:
    """Counts how many are held at once."""

    def __init__(self) -> None:
        self.num_held = self.most_held = 0

    @asynccontextmanager
    async def slot(self, _: Tenant) -> AsyncIterator[None]:
        self.num_held += 1
        self.most_held = max(self.most_held, self.num_held)
        try:
            yield
        finally:
            self.num_held -= 1


async def post(scripted: ScriptedGenerator, slots: Slots, **fields: Any) -> Any:
    model = served_model(max_choices=128, max_choices_at_once=4)
    async with client_of(scripted, model=model, slot=slots.slot) as client:
        return await client.post("/v1/chat/completions", json=CHAT | fields)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_128_choices_run_four_at_once(is_stream):
    scripted, slots = ScriptedGenerator(delay_s=0.001), Slots()
    response = await post(scripted, slots, n=128, stream=is_stream)
    assert (slots.most_held, slots.num_held) == (4, 0)
    assert sorted(one.sampling.seed for one in scripted.requests) == list(range(5, 133))
    if is_stream:
        ends = [event["choices"][0] for event in events_of(response.text)[:-1]]
        done = [one["index"] for one in ends if one["finish_reason"] is not None]
        assert sorted(done) == list(range(128))
    else:
        choices = response.json()["choices"]
        assert [choice["index"] for choice in choices] == list(range(128))
        assert {choice["message"]["content"] for choice in choices} == {"The bear."}
        assert response.json()["usage"]["completion_tokens"] == 128 * 3


async def test_more_are_refused_with_limit_and_value():
    response = await post(ScriptedGenerator(), Slots(), n=129)
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == "n"
    assert error["message"] == "n: at most 128 choices are allowed (got 129)"


async def test_a_client_that_leaves_frees_those_that_run_and_those_that_wait():
    scripted, slots = ScriptedGenerator(hang_at=1), Slots()
    asking = asyncio.create_task(post(scripted, slots, n=16))
    await scripted.started.wait()
    await asyncio.sleep(0.02)
    assert slots.num_held == 4
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert slots.num_held == 0
    assert len(scripted.requests) == scripted.closed == 4
