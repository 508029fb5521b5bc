"""Tools through router, grammars and real engines: every call validates, no draft changes one."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
import openai
import pytest
from openai.lib.streaming.chat import AsyncChatCompletionStreamManager
from openai.types.chat import ParsedChatCompletion
from pydantic import BaseModel

from models.text.tools.formats import HERMES, LAYOUTS
from models.text.tools.layout import ToolLayout
from models.text.tools.prompt import TurnFormats
from models.text.tools.reasoning import ReasoningLayout
from tests.cases.tools.lists import drawn_tools
from tests.harness.served_demo import demo_client

ORDER = "Turn this order into JSON.\nImogen from Delhi wants 6 blue lamps at $62.29 each."


class SaveOrder(BaseModel):
    """Save an order."""

    customer: str
    item: str
    quantity: int


TOOLS: list[Any] = [
    openai.pydantic_function_tool(SaveOrder, name="save_order"),
    {"type": "function", "function": {"name": "save", "description": "Save nothing."}},
]
CHOICES: dict[str, Any] = {
    "auto": "auto",
    "required": "required",
    "named": {"type": "function", "function": {"name": "save_order"}},
}
# A format in which every JSON that the demo begins is a call.
EAGER = ToolLayout(
    name="eager",
    trigger='{"',
    before_name='{"name": "',
    before_arguments='", "arguments": ',
    after="}",
)


# Signs that are special tokens of the demo, as Mistral's are of its own tokenizer.
SPECIAL = ToolLayout(
    name="special",
    trigger="<|system|>",
    before_name="<|system|>",
    before_arguments="<|user|>",
    after="",
    separator="",
)
# What the demo begins an order with ends its reasoning.
REASONING = ReasoningLayout(name="reasoning", end='", "', is_certain=True)


def body(text: str = ORDER, k: int | None = None, **fields: Any) -> dict[str, Any]:
    speculation = {} if k is None else {"k": k}
    return {
        "model": "demo",
        "messages": [{"role": "user", "content": text}],
        "tools": TOOLS,
        "max_tokens": 160,
        "extra_body": {"speculation": speculation},
    } | fields


def told(choice: Any) -> tuple[object, ...]:
    """What must depend neither on drafts nor on how it was sent."""
    message = choice.message
    calls = [(call.function.name, call.function.arguments) for call in message.tool_calls or ()]
    return choice.finish_reason, message.content or "", calls


async def streamed(client: openai.AsyncOpenAI, **fields: Any) -> ParsedChatCompletion[Any]:
    manager: AsyncChatCompletionStreamManager[Any] = client.chat.completions.stream(**fields)
    async with manager as stream:
        return await stream.get_final_completion()


@pytest.mark.parametrize("choice", CHOICES)
async def test_an_answer_is_the_same_with_drafts_without_and_streamed(choice):
    formats = TurnFormats(layout=EAGER) if choice == "auto" else None
    async with demo_client(formats=formats) as client:
        for drawn in ({"temperature": 0}, {"temperature": 0.7, "seed": 5}):
            fields = {"tool_choice": CHOICES[choice], **drawn}
            answers = []
            for k in (0, 4, None):
                answer = await client.chat.completions.create(**body(k=k, **fields))
                answers.append(told(answer.choices[0]))
                answers.append(told((await streamed(client, **body(k=k, **fields))).choices[0]))
            assert answers == answers[:1] * 6
            reason, content, calls = answers[0]
            assert (reason, content) == ("tool_calls", "")
            assert all(name in ("save_order", "save") for name, _ in calls)  # type: ignore[attr-defined]


async def test_the_demo_fills_in_an_order():
    async with demo_client() as client:
        fields = body(tool_choice="required", parallel_tool_calls=False, temperature=0)
        answer = await client.chat.completions.parse(**fields | {"tools": TOOLS[:1]})
        plain = await client.chat.completions.create(**body(temperature=0, tools=[]))
    [call] = answer.choices[0].message.tool_calls or []
    order = call.function.parsed_arguments
    assert isinstance(order, SaveOrder)
    assert (order.customer, order.quantity) == ("Imogen", 6)
    assert answer.usage is not None
    assert plain.usage is not None
    assert answer.usage.prompt_tokens > plain.usage.prompt_tokens
    metrics = answer.model_extra["metrics"]["speculative_decoding"]  # type: ignore[index]
    assert metrics["num_accepted_draft_tokens_by"]["forced"] > 10


async def test_choices_logprobs_and_history():
    async with demo_client() as client:
        fields = body(tool_choice="required", parallel_tool_calls=False, temperature=1, seed=2)
        answer = await client.chat.completions.create(**fields, n=2, logprobs=True)
        alone = await client.chat.completions.create(**fields | {"seed": 3})
        for choice in answer.choices:
            assert choice.logprobs is not None
            text = "".join(entry.token for entry in choice.logprobs.content or ())
            [call] = choice.message.tool_calls or []
            assert f'"arguments": {call.function.arguments}' in text
        assert told(answer.choices[1]) == told(alone.choices[0])
        message = answer.choices[0].message
        turns = [
            {"role": "user", "content": ORDER},
            message.model_dump(),
            {"role": "tool", "tool_call_id": call.id, "content": "saved"},
        ]
        turns[2]["tool_call_id"] = (message.tool_calls or [])[0].id
        after = await client.chat.completions.create(**body(temperature=0) | {"messages": turns})
    assert after.choices[0].message.content


@pytest.mark.parametrize("name", LAYOUTS)
async def test_every_format_calls_over_http(name):
    async with demo_client(formats=TurnFormats(layout=LAYOUTS[name])) as client:
        fields = body(tool_choice="required", temperature=0, parallel_tool_calls=False)
        whole = await client.chat.completions.create(**fields)
        parts = await streamed(client, **fields)
    assert told(whole.choices[0]) == told(parts.choices[0])
    [call] = whole.choices[0].message.tool_calls or []
    assert call.function.name in ("save_order", "save")
    assert len(call.id) == LAYOUTS[name].num_id_chars + len(LAYOUTS[name].id_prefix)


@pytest.mark.parametrize("k", [0, 4])
async def test_a_format_of_special_tokens_calls_as_well(k):
    async with demo_client(formats=TurnFormats(layout=SPECIAL)) as client:
        fields = body(k=k, tool_choice="required", temperature=1, seed=4)
        whole = await client.chat.completions.create(**fields)
        parts = await streamed(client, **fields)
        text = await client.chat.completions.create(**body(k=k, temperature=0))
    assert told(whole.choices[0]) == told(parts.choices[0])
    assert whole.choices[0].message.tool_calls
    assert text.choices[0].message.content


@pytest.mark.parametrize("k", [0, 4])
async def test_constraints_and_calls_come_after_reasoning(k):
    async with demo_client(formats=TurnFormats(reasoning=REASONING)) as client:
        fields = body(k=k, temperature=0)
        calling = await client.chat.completions.create(**fields | {"tool_choice": "required"})
        chosen = {"speculation": {"k": k}, "structured_outputs": {"choice": ["yes", "no"]}}
        saying = await client.chat.completions.create(
            **fields | {"tools": [], "extra_body": chosen}
        )
    for answer in (calling, saying):
        extra = answer.choices[0].message.model_extra or {}
        assert extra["reasoning_content"] == '{"customer": "Imogen'
    assert calling.choices[0].finish_reason == "tool_calls"
    assert calling.choices[0].message.content is None
    assert saying.choices[0].message.content in ("yes", "no")


async def test_text_comes_first_where_the_model_writes_some():
    async with demo_client(formats=TurnFormats(layout=HERMES)) as client:
        answer = await client.chat.completions.create(
            **body("Write a short story about a dog and a ball.", temperature=0.5, seed=1)
        )
    assert answer.choices[0].finish_reason in ("stop", "length")
    assert len(answer.choices[0].message.content or "") > 40


async def test_a_bad_schema_is_named_by_its_tool():
    bad = {"type": "object", "properties": {"x": {"type": "array", "contains": {"type": "no"}}}}
    tool = {"type": "function", "function": {"name": "bad", "strict": True, "parameters": bad}}
    async with demo_client() as client:
        with pytest.raises(openai.BadRequestError) as refused:
            await client.chat.completions.create(**body(tools=[*TOOLS, tool]))
    assert refused.value.param == "tools[2].function.parameters"
    assert "$.properties.x" in refused.value.message


@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_two_hundred_calls_of_drawn_tools_validate():
    num_calls = 0
    async with demo_client() as client:
        for seed in range(1000, 1200):
            tools = drawn_tools(seed)
            schemas = {tool["function"]["name"]: tool["function"]["parameters"] for tool in tools}
            answer = await client.chat.completions.create(
                **body(
                    k=(None, 0, 4)[seed % 3],
                    tools=tools,
                    tool_choice="required",
                    parallel_tool_calls=False,
                    seed=seed,
                    max_tokens=400,
                )
            )
            choice = answer.choices[0]
            assert choice.finish_reason == "tool_calls", (seed, choice)
            for call in choice.message.tool_calls or ():
                arguments = json.loads(call.function.arguments)
                validator = jsonschema.Draft202012Validator(schemas[call.function.name])
                assert list(validator.iter_errors(arguments)) == [], (seed, arguments)
                num_calls += 1
    assert num_calls == 200


async def test_several_calls_validate_as_well():
    async with demo_client() as client:
        answer = await client.chat.completions.create(
            **body(tool_choice="required", temperature=1.5, seed=3, max_tokens=300)
        )
    calls = answer.choices[0].message.tool_calls or []
    schema = TOOLS[0]["function"]["parameters"]
    for call in calls[: len(calls) - (answer.choices[0].finish_reason == "length")]:
        if call.function.name == "save_order":
            jsonschema.validate(json.loads(call.function.arguments), schema)
        else:
            assert json.loads(call.function.arguments) == {}
    assert calls
