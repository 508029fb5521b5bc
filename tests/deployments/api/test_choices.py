"""Several choices of one request: seeds, indices, sums, their common end, and turns of many."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import pytest

from deployments.api.choices import finished_together
from deployments.api.keys import Tenant
from models.protocol.errors import Overloaded, Unavailable
from router.stats import SpeculationStats, TimeSplit
from router.types import Finished
from tests.deployments.api.asking import post
from tests.fakes.http import BODIES, BOTH, CHAT, STATS, ScriptedGenerator, served_model
from tests.harness.http_clients import client_of, events_of
from tests.harness.waiting import wait_until

TEXTS = {5: ("one",), 6: ("two ", "words"), 7: ("now ", "three ", "words")}


async def ask(scripted: ScriptedGenerator, path: str, **fields: Any) -> httpx.Response:
    return await post(path, BODIES[path] | {"seed": 5, "n": 3} | fields, scripted)


@BOTH
async def test_each_choice_is_the_answer_of_its_own_seed(path):
    scripted = ScriptedGenerator(texts_of=TEXTS)
    answer = (await ask(scripted, path)).json()
    texts = [
        choice["message"]["content"] if "chat" in path else choice["text"]
        for choice in answer["choices"]
    ]
    assert texts == ["".join(blocks) for blocks in TEXTS.values()]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2]
    assert sorted(request.sampling.seed for request in scripted.requests) == [5, 6, 7]
    assert len({request.request_id for request in scripted.requests}) == 3
    num_prompt = len(scripted.requests[0].prompt_ids)
    assert answer["usage"]["prompt_tokens"] == num_prompt
    assert answer["usage"]["completion_tokens"] == 6
    assert answer["seed"] == 5
    assert answer["metrics"]["rounds"]["num_rounds"] == 3 * STATS.num_rounds
    assert scripted.closed == 3


@BOTH
async def test_a_stream_says_whose_text_it_is(path):
    scripted = ScriptedGenerator(texts_of=TEXTS)
    response = await ask(scripted, path, stream=True, stream_options={"include_usage": True})
    *events, usage, done = events_of(response.text)
    assert done == "[DONE]"
    texts, ends = ["", "", ""], []
    for event in events:
        [choice] = event["choices"]
        piece = choice["delta"].get("content", "") if "chat" in path else choice["text"]
        assert choice["index"] not in ends
        texts[choice["index"]] += piece
        if choice["finish_reason"] is not None:
            ends.append(choice["index"])
    assert texts == ["".join(blocks) for blocks in TEXTS.values()]
    assert sorted(ends) == [0, 1, 2]
    assert usage["choices"] == []
    assert usage["usage"]["completion_tokens"] == 6


@BOTH
async def test_one_that_fails_ends_them_all(path):
    full = ScriptedGenerator(error=Overloaded("full"))
    assert (await ask(full, path)).status_code == 429
    assert full.closed == 3
    lost = ScriptedGenerator(error=Unavailable("target lost"), error_at=1)
    response = await ask(lost, path, stream=True)
    assert events_of(response.text)[-1]["error"]["message"] == "target lost"
    assert lost.closed == 3


async def test_a_client_that_goes_away_frees_all_choices():
    scripted = ScriptedGenerator(texts=["x"] * 200, hang_at=150)
    async with client_of(scripted) as client:
        body = BODIES["/v1/completions"] | {"n": 3}
        task = asyncio.create_task(client.post("/v1/completions", json=body))
        await scripted.started.wait()
        await asyncio.sleep(0.05)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await wait_until(lambda: scripted.closed == 3)


def test_ends_are_added_up():
    other = SpeculationStats(
        num_rounds=2,
        per_step_drafted=(3,),
        per_step_accepted=(1,),
        num_drafted_by={"ngram": 3},
        num_accepted_by={"ngram": 1},
        time=TimeSplit(draft_ms=0.5),
    )
    ends = [
        Finished(
            finish_reason="stop",
            num_prompt_tokens=4,
            num_completion_tokens=tokens,
            speculation=stats,
        )
        for tokens, stats in ((7, STATS), (3, other))
    ]
    together = finished_together(ends)
    assert (together.num_prompt_tokens, together.num_completion_tokens) == (4, 10)
    stats = together.speculation
    assert stats.acceptance_histogram == (1, 2, 1, 1)
    assert stats.num_spec_tokens == 3
    assert stats.num_drafted_by == {"draft_model": 7, "ngram": 6}
    assert stats.num_accepted_by == {"draft_model": 5, "ngram": 2}
    assert stats.draft_acceptance_rate == pytest.approx(7 / 13)
    assert stats.time == TimeSplit(draft_ms=2.0, verify_ms=2.5)
    assert finished_together(ends[:1]) is ends[0]


# --- some at once, the others as these end --------------------------------------------------------


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


async def ask_many(scripted: ScriptedGenerator, slots: Slots, **fields: Any) -> httpx.Response:
    model = served_model(max_choices=128, max_choices_at_once=4)
    body = CHAT | {"seed": 5} | fields
    return await post("/v1/chat/completions", body, scripted, model=model, slot=slots.slot)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_128_choices_run_four_at_once(is_stream):
    scripted, slots = ScriptedGenerator(delay_s=0.001), Slots()
    response = await ask_many(scripted, slots, n=128, stream=is_stream)
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


async def test_a_client_that_leaves_frees_those_that_run_and_those_that_wait():
    scripted, slots = ScriptedGenerator(hang_at=1), Slots()
    asking = asyncio.create_task(ask_many(scripted, slots, n=16))
    await scripted.started.wait()
    await asyncio.sleep(0.02)
    assert slots.num_held == 4
    asking.cancel()
    await asyncio.gather(asking, return_exceptions=True)
    assert slots.num_held == 0
    assert len(scripted.requests) == scripted.closed == 4
