"""/v1/responses over the demo pair's real engines: with the `openai` client, and without."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import reduce
from typing import Any

import httpx
import openai
import pydantic
import pytest
import pytest_asyncio

from loadtest.clients.catalog import Target
from models.protocol.errors import Unavailable
from models.protocol.messages import TokenLogprobs
from models.text.tools.prompt import TurnFormats
from models.text.tools.reasoning import REASONING
from router.types import Delta, ShownToken
from tests.deployments.api.asking import post, refusal
from tests.fakes.http import ScriptedGenerator, served_model
from tests.harness.served_demo import demo_over_http

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

BODY = {"model": "tiny", "input": "hi"}
NESTED: dict[str, Any] = reduce(lambda inner, _: {"not": inner}, range(300), {})
DEEP = {"type": "json_schema", "name": "a", "schema": NESTED}
STORY = "Write a short story about a dog and a ball."
ORDER = "Turn this order into JSON.\nImogen from Delhi wants 6 blue lamps at $62.29 each."
WEATHER = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"enum": ["Paris", "Delhi"]}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def demo() -> AsyncIterator[Target]:
    async with demo_over_http() as target:
        yield target


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def asking(demo: Target) -> AsyncIterator[Any]:
    """OpenAI's client."""
    async with openai.AsyncOpenAI(
        base_url=f"{demo.root_url}/v1", api_key="none", max_retries=0
    ) as made:
        yield made


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(demo: Target) -> AsyncIterator[httpx.AsyncClient]:
    async with httpx.AsyncClient(base_url=demo.root_url, timeout=60) as made:
        yield made


def allowed(mode: str, *names: str) -> dict[str, Any]:
    tools = [{"type": "function", "name": name} for name in names]
    return {"type": "allowed_tools", "mode": mode, "tools": tools}


async def chat_text(asking: Any, messages: list[Any], **options: Any) -> str:
    answer = await asking.chat.completions.create(model="demo", messages=messages, **options)
    return answer.choices[0].message.content or ""


async def test_an_answer_is_that_of_a_chat(asking):
    answer = await asking.responses.create(
        model="demo",
        input=STORY,
        instructions="Be brief.",
        max_output_tokens=24,
        metadata={"trace": "a"},
        store=True,
        extra_body={"seed": 7, "speculation": {"k": 3}},
    )
    text = await chat_text(
        asking,
        [{"role": "system", "content": "Be brief."}, {"role": "user", "content": STORY}],
        max_tokens=24,
        seed=7,
    )
    assert answer.output_text == text
    assert (answer.status, answer.incomplete_details.reason) == ("incomplete", "max_output_tokens")
    assert answer.metadata == {"trace": "a"}
    assert answer.instructions == "Be brief."
    assert answer.id.startswith("resp_")
    assert answer.usage.output_tokens == 24
    assert answer.usage.total_tokens == answer.usage.input_tokens + 24
    raw = answer.model_dump()
    assert raw["store"] is False
    assert raw["seed"] == 7
    assert raw["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0


@pytest.mark.parametrize("speculation", [{"enabled": False}, {"k": 3}, {}])
async def test_drafts_do_not_move_the_text(asking, speculation):
    texts = []
    for options in ({"enabled": False}, speculation):
        answer = await asking.responses.create(
            model="demo",
            input=STORY,
            max_output_tokens=24,
            extra_body={"seed": 3, "speculation": options},
        )
        texts.append(answer.output_text)
    assert texts[0] == texts[1] != ""


async def test_a_stream_has_openais_events_in_openais_order(asking):
    options = {"model": "demo", "input": STORY, "max_output_tokens": 20, "temperature": 0}
    whole = await asking.responses.create(**options)
    events = [event async for event in await asking.responses.create(**options, stream=True)]
    kinds = [event.type for event in events]
    deltas = kinds.count("response.output_text.delta")
    assert deltas > 2
    assert kinds == [
        "response.created",
        "response.in_progress",
        "response.output_item.added",
        "response.content_part.added",
        *["response.output_text.delta"] * deltas,
        "response.output_text.done",
        "response.content_part.done",
        "response.output_item.done",
        "response.incomplete",
    ]
    assert [event.sequence_number for event in events] == list(range(len(events)))
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    last = events[-1].response
    assert text == last.output_text == whole.output_text
    assert last.usage.output_tokens == 20
    assert events[0].response.status == "in_progress"
    assert {event.response.id for event in (events[0], events[1], events[-1])} == {last.id}
    ids = {event.item_id for event in events if "text" in event.type}
    assert ids == {last.output[0].id}


class Order(pydantic.BaseModel):
    customer: str
    item: str
    quantity: int


async def test_a_schema_is_obeyed_whole_parsed_and_streamed(asking):
    options = {"model": "demo", "input": ORDER, "temperature": 0}
    parsed = await asking.responses.parse(**options, text_format=Order)
    assert parsed.status == "completed"
    messages = [{"role": "user", "content": ORDER}]
    chat = await asking.chat.completions.parse(
        model="demo", messages=messages, temperature=0, response_format=Order
    )
    assert parsed.output_parsed == chat.choices[0].message.parsed
    assert parsed.output_parsed.customer == "Imogen"
    async with asking.responses.stream(**options, text_format=Order) as stream:
        async for _ in stream:
            pass
        final = await stream.get_final_response()
    assert final.output_parsed == parsed.output_parsed
    loose = await asking.responses.create(**options, text={"format": {"type": "json_object"}})
    assert isinstance(json.loads(loose.output_text), dict)


@pytest.mark.parametrize("is_stream", [False, True])
async def test_a_function_is_called_and_its_result_goes_on(asking, is_stream):
    options = {
        "model": "demo",
        "input": "What is the weather in Delhi?",
        "tools": [WEATHER],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "temperature": 0,
    }
    if is_stream:
        events = [e async for e in await asking.responses.create(**options, stream=True)]
        answer = events[-1].response
        parts = [e.delta for e in events if e.type == "response.function_call_arguments.delta"]
        [done] = [e for e in events if e.type == "response.function_call_arguments.done"]
        assert "".join(parts) == done.arguments == answer.output[0].arguments
    else:
        answer = await asking.responses.create(**options)
    [call] = answer.output
    assert (call.type, call.name, call.status) == ("function_call", "get_weather", "completed")
    assert json.loads(call.arguments)["city"] in ("Paris", "Delhi")
    history = [
        {"role": "user", "content": options["input"]},
        call.model_dump(),
        {"type": "function_call_output", "call_id": call.call_id, "output": "31 degrees"},
    ]
    bare = await asking.responses.create(model="demo", input=history[:1], max_output_tokens=1)
    after = await asking.responses.create(
        model="demo", input=history, tools=[WEATHER], max_output_tokens=8, tool_choice="none"
    )
    assert after.usage.input_tokens > bare.usage.input_tokens + 10
    assert after.output_text


async def test_items_are_the_messages_of_a_chat(asking):
    items = [
        {"role": "developer", "content": "Be brief."},
        {"type": "message", "role": "user", "content": [{"type": "input_text", "text": STORY}]},
        {
            "id": "msg_1",
            "type": "message",
            "status": "completed",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "Once.", "annotations": []}],
        },
        {"role": "user", "content": "Go on."},
    ]
    turns = [
        {"role": "developer", "content": "Be brief."},
        {"role": "user", "content": STORY},
        {"role": "assistant", "content": "Once."},
        {"role": "user", "content": "Go on."},
    ]
    answer = await asking.responses.create(
        model="demo", input=items, max_output_tokens=12, temperature=0
    )
    assert answer.output_text == await chat_text(asking, turns, max_tokens=12, temperature=0)


# --- beside the text: logprobs, rounds, a choice of tools -----------------------------------------


LOGPROBS = {"include": ["message.output_text.logprobs"], "top_logprobs": 2}


async def asked(client: httpx.AsyncClient, **fields: Any) -> Any:
    """The answer of the demo, or the events of a stream."""
    body = {"model": "demo", "input": STORY, "temperature": 0, "max_output_tokens": 24} | fields
    response = await client.post("/v1/responses", json=body)
    assert response.status_code == 200, response.text
    if not fields.get("stream"):
        return response.json()
    blocks = response.text.strip().split("\n\n")
    return [json.loads(block.split("\ndata: ")[1]) for block in blocks]


async def test_logprobs_are_those_of_a_chat(client):
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


async def test_a_stream_has_each_logprob_once_with_its_text_and_all_of_them_at_the_end(client):
    events = await asked(client, stream=True, **LOGPROBS)
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


async def test_reasoning_has_no_logprobs_and_is_counted_apart():
    texts = ("<think>", "So", ".</think>\n\nYes", ".")
    ids = ((0,), (1, 2), (3, 4, 5), (6,))
    offsets = ((0,), (7, 8), (9, 10, 18), (23,))
    deltas = [
        Delta(text, tokens, tuple(map(shown, places, tokens)))
        for text, tokens, places in zip(texts, ids, offsets, strict=True)
    ]
    model = served_model(max_model_len=2000)
    model = replace(model, formats=TurnFormats(reasoning=REASONING["qwen3"]))
    generator = ScriptedGenerator(deltas=deltas)
    answer = await post("/v1/responses", BODY | LOGPROBS, generator, model=model)
    thought, message = answer.json()["output"]
    assert (thought["type"], message["content"][0]["text"]) == ("reasoning", "Yes.")
    told = [round(entry["logprob"]) for entry in message["content"][0]["logprobs"]]
    assert told == [-5, -6]
    assert answer.json()["usage"]["output_tokens_details"] == {"reasoning_tokens": 5}


def shown(offset: int, token: int) -> ShownToken:
    return ShownToken(offset, TokenLogprobs(token, -float(token), 1))


async def test_without_asking_there_are_none(client):
    [part] = (await asked(client))["output"][0]["content"]
    assert part["logprobs"] == []


async def test_too_many_logprobs_are_refused_by_the_name_that_the_client_wrote():
    model = served_model(max_logprob_entries=10)
    for fields, param in (
        ({"include": LOGPROBS["include"]}, "include"),
        (LOGPROBS, "top_logprobs"),
        ({"speculation": {"details": True}}, "speculation.details"),
    ):
        body = BODY | {"max_output_tokens": 30} | fields
        assert (await refusal("/v1/responses", body, model=model))["param"] == param


async def test_the_rounds_are_told_beside_the_response(client):
    fields: dict[str, Any] = {"speculation": {"k": 3, "details": True}}
    answer = await asked(client, **fields)
    [details] = answer["speculation_details"]
    text = answer["output"][0]["content"][0]["text"]
    assert "".join(token["token"] for token in details["tokens"]) == text
    assert sum(each["num_tokens"] for each in details["rounds"]) == 24
    assert answer["output"][0]["content"][0]["logprobs"] == []
    events = await asked(client, **fields, stream=True)
    assert events[-1]["response"]["output"][0]["content"][0]["text"] == text
    [last] = events[-1]["speculation_details"]
    told = [one for event in events[:-1] for one in event.get("speculation_details", [])]
    assert [t for one in told for t in one["tokens"]] == last["tokens"][: len(details["tokens"])]
    assert [event["sequence_number"] for event in events] == list(range(len(events)))


@pytest.mark.parametrize("is_stream", [False, True])
async def test_only_allowed_functions_are_called(client, is_stream):
    tools = [WEATHER | {"name": name} for name in ("get_weather", "get_time", "get_news")]
    choice = allowed("required", "get_time")
    fields = {"tools": tools, "tool_choice": choice, "parallel_tool_calls": False}
    answer = await asked(client, **fields, max_output_tokens=60, stream=is_stream)
    if is_stream:
        answer = answer[-1]["response"]
    [call] = answer["output"]
    assert call["name"] == "get_time"
    assert answer["tool_choice"] == choice
    # The model sees all of them: the prompt is that of a free choice.
    free = await asked(client, tools=tools, tool_choice="auto", max_output_tokens=1)
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


async def test_the_oldest_turns_go_where_a_conversation_does_not_fit(client):
    async def ask(items: Any, **fields: Any) -> httpx.Response:
        body = {"model": "demo", "input": items, "temperature": 0, "max_output_tokens": 8}
        return await client.post("/v1/responses", json=body | fields)

    whole = turns(30)
    assert (await ask(whole)).json()["error"]["code"] == "context_length_exceeded"
    cut = (await ask(whole, **CUT)).json()
    assert cut["truncation"] == "auto"
    # By hand: the longest end that begins with a question and fits.
    for start in range(0, len(whole), 2):
        kept = await ask(whole[start:], instructions=CUT["instructions"])
        if kept.status_code == 200:
            break
    assert 0 < start < len(whole) - 1
    assert kept.json()["usage"]["input_tokens"] == cut["usage"]["input_tokens"]
    assert kept.json()["output"][0]["content"] == cut["output"][0]["content"]
    # What fits stays whole, and one message that does not fit is refused as it was.
    small = [(await ask(turns(2), **fields)).json() for fields in ({}, {**CUT})]
    assert small[1]["usage"]["input_tokens"] > small[0]["usage"]["input_tokens"]
    huge = await ask([*turns(2), {"role": "user", "content": WORDS * 400}], **CUT)
    assert huge.status_code == 400
    assert huge.json()["error"]["param"] == "input"


# --- refusals -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "conv_1"}, "conversation"),
        ({"prompt": {"id": "pmpt_1"}}, "prompt"),
        ({"background": True}, "background"),
        ({"truncation": "some"}, "truncation"),
        ({"include": ["message.output_text.colour"]}, "include"),
        ({"include": "message.output_text.logprobs"}, "include"),
        ({"top_logprobs": 2}, "top_logprobs"),
        ({"include": ["message.output_text.logprobs"], "top_logprobs": 21}, "top_logprobs"),
        ({"reasoning": {"effort": "very"}}, "reasoning.effort"),
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "msg_1"}]}, "input"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input"),
        ({"input": [{"role": "ghost", "content": "x"}]}, "input"),
        ({"max_output_tokens": 0}, "max_output_tokens"),
        ({"max_output_tokens": 100_000}, "max_output_tokens"),
        ({"max_tokens": 5}, "max_tokens"),
        ({"text": {"format": {"type": "json_schema", "name": "a"}}}, "text.format.schema"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type"),
        ({"text": {"format": DEEP}, "stream": True}, "text.format.schema"),
        ({"text": {"verbosity": "loud"}}, "text.verbosity"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
        ({"tools": [WEATHER, WEATHER]}, "tools[1].name"),
        ({"tool_choice": {"type": "function", "name": "none"}}, "tool_choice.name"),
        ({"tool_choice": "required"}, "tools"),
        ({"tool_choice": {"type": "allowed_tools", "mode": "none", "tools": []}}, "tool_choice"),
        (
            {"tools": [WEATHER], "tool_choice": allowed("required", "f")},
            "tool_choice.tools[0].name",
        ),
        ({"tools": [WEATHER], "tool_choice": allowed("required", "a,b")}, "tool_choice"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(i): "" for i in range(17)}}, "metadata"),
        ({"stream_options": {"include_obfuscation": True}}, "stream_options"),
        ({"temperature": 3}, "temperature"),
        ({"model": "other"}, "model"),
        ({"tools": [{"type": "web_search"}, WEATHER], "tool_choice": "required"}, "tools[0]"),
        (
            {"tools": [{"type": "web_search"}, WEATHER], "tool_choice": {"type": "mcp"}},
            "tool_choice",
        ),
        ({"tools": [{"type": "web_search"}, WEATHER, WEATHER]}, "tools[2].name"),
        ({"other_tools": [[0, "x"]]}, "other_tools"),
    ],
)
async def test_what_is_not_served_is_refused_by_the_name_that_the_client_wrote(fields, param):
    response = await post("/v1/responses", BODY | fields)
    assert response.status_code == (404 if param == "model" else 400)
    assert response.json()["error"]["param"] == param


async def test_a_broken_stream_ends_with_an_error_that_the_client_raises():
    scripted = ScriptedGenerator(error=Unavailable("the target is gone"), error_at=1)
    response = await post("/v1/responses", BODY | {"stream": True}, scripted)
    *_, last = response.text.strip().split("\n\n")
    name, data = last.split("\n")
    assert name == "event: error"
    event = json.loads(data.removeprefix("data: "))
    assert event["type"] == "error"
    assert event["message"] == event["error"]["message"] == "the target is gone"
    assert event["sequence_number"] > 0
