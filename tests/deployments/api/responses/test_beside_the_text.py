"""/v1/responses: logprobs, rounds, a choice of tools, conversations that do not fit."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import httpx
import pytest

from tests.fakes.http import ScriptedGenerator, served_model
from tests.harness.http_clients import client_of
from tests.harness.served_demo import demo_over_http

STORY = "Write a short story about a dog and a ball."
LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


def function(name: str) -> dict[str, Any]:
    parameters = {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Delhi"]}},
        "required": ["city"],
    }
    return {"type": "function", "name": name, "parameters": parameters}


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": mode, "tools": tools}


@asynccontextmanager
async def demo_client() -> AsyncIterator[httpx.AsyncClient]:
    async with (
        demo_over_http() as target,
        httpx.AsyncClient(base_url=target.root_url, timeout=60) as client,
    ):
        yield client


async def asked(**fields: Any) -> Any:
    """The answer of the demo, or the events of a stream."""
    body = {"model": "demo", "input": STORY, "temperature": 0, "max_output_tokens": 24} | fields
    async with demo_client() as client:
        response = await client.post("/v1/responses", json=body)
        assert response.status_code == 200, response.text
        if not fields.get("stream"):
            return response.json()
        blocks = response.text.strip().split("\n\n")
        return [json.loads(block.split("\ndata: ")[1]) for block in blocks]


async def test_logprobs_are_those_of_a_chat():
    async with demo_client() as client:
        body = {"model": "demo", "temperature": 0}
        chat = await client.post(
            "/v1/chat/completions",
            json=body
            | {"messages": [{"role": "user", "content": STORY}], "max_tokens": 24}
            | {"logprobs": True, "top_logprobs": 2},
        )
        fields = body | {"input": STORY, "max_output_tokens": 24} | LOGPROBS
        answer = (await client.post("/v1/responses", json=fields)).json()
    [part] = answer["output"][0]["content"]
    expected = chat.json()["choices"][0]["logprobs"]["content"]
    assert len(part["logprobs"]) == len(expected) > 10
    for entry, other in zip(part["logprobs"], expected, strict=True):
        assert entry["token"] == other["token"]
        assert entry["bytes"] == other["bytes"]
        assert entry["logprob"] == pytest.approx(other["logprob"], abs=1e-4)
        assert len(entry["top_logprobs"]) == 2
    assert "".join(entry["token"] for entry in part["logprobs"]) == part["text"]
    assert answer["top_logprobs"] == 2


async def test_a_stream_has_each_logprob_once_with_its_text_and_all_of_them_at_the_end():
    events = await asked(stream=True, **LOGPROBS)
    deltas = [event for event in events if event["type"] == "response.output_text.delta"]
    assert len(deltas) > 2
    for event in deltas:
        assert "".join(entry["token"] for entry in event["logprobs"]) == event["delta"]
    [added] = [event for event in events if event["type"] == "response.content_part.added"]
    assert added["part"]["logprobs"] == []
    [done] = [event for event in events if event["type"] == "response.output_text.done"]
    joined = [entry for event in deltas for entry in event["logprobs"]]
    [part] = events[-1]["response"]["output"][0]["content"]
    assert joined == done["logprobs"] == part["logprobs"]
    assert part["logprobs"]


async def test_without_asking_there_are_none():
    [part] = (await asked())["output"][0]["content"]
    assert part["logprobs"] == []


async def test_too_many_logprobs_are_refused_by_the_name_that_the_client_wrote():
    model = replace(served_model(), max_logprob_entries=10)
    async with client_of(ScriptedGenerator(), model=model) as client:
        for fields, param in (
            ({"include": LOGPROBS["include"]}, "include"),
            (LOGPROBS, "top_logprobs"),
            ({"speculation": {"details": True}}, "speculation.details"),
        ):
            body = {"model": "tiny", "input": "hi", "max_output_tokens": 30} | fields
            response = await client.post("/v1/responses", json=body)
            assert response.status_code == 400, fields
            assert response.json()["error"]["param"] == param


async def test_the_rounds_are_told_beside_the_response():
    fields: dict[str, Any] = {"speculation": {"k": 3, "details": True}}
    answer = await asked(**fields)
    [details] = answer["speculation_details"]
    text = answer["output"][0]["content"][0]["text"]
    assert "".join(token["token"] for token in details["tokens"]) == text
    assert sum(each["num_tokens"] for each in details["rounds"]) == 24
    assert answer["output"][0]["content"][0]["logprobs"] == []
    events = await asked(**fields, stream=True)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == text
    [last] = events[-1]["speculation_details"]
    told = [one for event in events[:-1] for one in event.get("speculation_details", [])]
    assert [t for one in told for t in one["tokens"]] == last["tokens"][: len(details["tokens"])]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.parametrize("is_stream", [False, True])
async def test_only_allowed_functions_are_called(is_stream):
    tools = [function("get_weather"), function("get_time"), function("get_news")]
    choice = allowed("required", "get_time")
    fields = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
    answer = await asked(**fields, max_output_tokens=60, stream=is_stream)
    if is_stream:
        answer = answer[-1]["response"]
    [call] = answer["output"]
    assert call["name"] == "get_time"
    assert answer["tool_choice"] == choice
    # The model sees all of them: the prompt is that of a free choice.
    free = await asked(tools=tools, tool_choice="auto", max_output_tokens=1)
    assert answer["usage"]["input_tokens"] == free["usage"]["input_tokens"]


WORDS = "one two three four five six seven eight nine ten "
CUT = {"truncation": "auto", "instructions": "Be brief."}


def turns(num: int) -> list[dict[str, Any]]:
    """A conversation of `num` questions, each with its answer but the last."""
    items: list[dict[str, Any]] = []
    for index in range(num):
        items.append({"role": "user", "content": f"Question {index}. {WORDS * 4}"})
        items.append({"role": "assistant", "content": f"Answer {index}."})
    return items[:-1]


async def test_the_oldest_turns_go_where_a_conversation_does_not_fit():
    async with demo_client() as client:

        async def post(items: Any, **fields: Any) -> httpx.Response:
            body = {"model": "demo", "input": items, "temperature": 0, "max_output_tokens": 8}
            return await client.post("/v1/responses", json=body | fields)

        whole = turns(30)
        assert (await post(whole)).json()["error"]["code"] == "context_length_exceeded"
        cut = (await post(whole, **CUT)).json()
        assert cut["truncation"] == "auto"
        # By hand: the longest end that begins with a question and fits.
        for start in range(0, len(whole), 2):
            kept = await post(whole[start:], instructions=CUT["instructions"])
            if kept.status_code == 200:
                break
        assert 0 < start < len(whole) - 1
        assert kept.json()["usage"]["input_tokens"] == cut["usage"]["input_tokens"]
        assert kept.json()["output"][0]["content"] == cut["output"][0]["content"]
        # What fits stays whole, and one message that does not fit is refused as it was.
        small = [(await post(turns(2), **fields)).json() for fields in ({}, {**CUT})]
        assert small[1]["usage"]["input_tokens"] > small[0]["usage"]["input_tokens"]
        huge = await post([*turns(2), {"role": "user", "content": WORDS * 400}], **CUT)
        assert huge.status_code == 400
        assert huge.json()["error"]["param"] == "input"
