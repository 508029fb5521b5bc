"""OpenAI's own client: tools in every mode, streamed and not, and their results sent back."""

from __future__ import annotations

import json
import uuid
from typing import Any

import openai
from openai import BadRequestError
from openai.types.chat import ChatCompletion

from loadtest.clients.scripts.checks import (
    ORDER,
    STORY,
    CheckFailed,
    Checks,
    Service,
    expect,
    expect_order,
)
from loadtest.clients.scripts.openai_parts.client import asked, client_of
from loadtest.clients.scripts.order import Order

checks = Checks()

RECORD: Any = openai.pydantic_function_tool(Order, name="record")
NOTHING: Any = {"type": "function", "function": {"name": "nothing", "description": "Do nothing."}}
NAMED: Any = {"type": "function", "function": {"name": "record"}}


def body(service: Service, text: str = ORDER, **options: Any) -> dict[str, Any]:
    return asked(
        service, text, **{"tools": [RECORD], "temperature": 0, "max_tokens": 120, **options}
    )


def order_in(answer: ChatCompletion) -> str:
    choice = answer.choices[0]
    calls = choice.message.tool_calls or []
    expect(len(calls) == 1 and calls[0].type == "function", f"calls: {calls}")
    expect(choice.finish_reason == "tool_calls", f"finish reason {choice.finish_reason}")
    expect(choice.message.content is None, f"content {choice.message.content!r}")
    return expect_order(json.loads(calls[0].function.arguments))  # type: ignore[union-attr]


@checks.named("tools: a required call")
def required(service: Service) -> str:
    one = body(service, tool_choice="required", parallel_tool_calls=False)
    return order_in(client_of(service).chat.completions.create(**one))


@checks.named("tools: a named function")
def named(service: Service) -> str:
    some = body(service, tools=[NOTHING, RECORD], tool_choice=NAMED)
    return order_in(client_of(service).chat.completions.create(**some))


@checks.named("tools: auto may answer in text")
def auto(service: Service) -> str:
    answer = client_of(service).chat.completions.create(**body(service, STORY))
    message = answer.choices[0].message
    expect(message.content or message.tool_calls, "neither text nor calls")
    return str(message)


@checks.named("tools: none never calls")
def none(service: Service) -> str:
    answer = client_of(service).chat.completions.create(**body(service, tool_choice="none"))
    expect(not answer.choices[0].message.tool_calls, "there are calls")
    return str(answer.choices[0].message.content)


@checks.named("tools: parse with pydantic")
def parsed(service: Service) -> str:
    answer = client_of(service).chat.completions.parse(**body(service, tool_choice=NAMED))
    calls = answer.choices[0].message.tool_calls or []
    order = calls[0].function.parsed_arguments
    if not isinstance(order, Order):
        raise CheckFailed(f"parsed {order!r}")
    return expect_order(order.model_dump())


@checks.named("tools: stream, several chunks of arguments")
def stream(service: Service) -> str:
    parts: list[str] = []
    # A salt of its own: the answer to the same request is drafted whole from memory.
    new = body(service, tool_choice=NAMED, extra_body={"cache_salt": uuid.uuid4().hex})
    with client_of(service).chat.completions.stream(**new) as events:
        for event in events:
            if event.type == "tool_calls.function.arguments.delta":
                parts.append(event.arguments_delta)
        found = order_in(events.get_final_completion())
    whole = client_of(service).chat.completions.create(**body(service, tool_choice=NAMED))
    call = (whole.choices[0].message.tool_calls or [])[0]
    expect("".join(parts) == call.function.arguments, f"the stream said {''.join(parts)!r}")
    expect(len([part for part in parts if part]) > 2, f"{len(parts)} parts")
    return found


@checks.named("tools: two choices, logprobs, usage")
def choices(service: Service) -> str:
    two = body(service, tool_choice=NAMED, n=2, logprobs=True, seed=1)
    answer = client_of(service).chat.completions.create(**two)
    expect(all(choice.message.tool_calls for choice in answer.choices), f"{answer.choices}")
    contents = [choice.logprobs.content or [] for choice in answer.choices if choice.logprobs]
    expect(len(contents) == 2 and all(contents), "no logprobs")
    expect(answer.usage and answer.usage.completion_tokens > 0, f"usage {answer.usage}")
    return str(answer.usage)


@checks.named("tools: a result sent back")
def history(service: Service) -> str:
    client = client_of(service)
    message = client.chat.completions.create(**body(service, tool_choice=NAMED)).choices[0].message
    call = (message.tool_calls or [])[0]
    result = {"role": "tool", "tool_call_id": call.id, "content": "recorded"}
    turns = [{"role": "user", "content": ORDER}, message, result]
    answer = client.chat.completions.create(**body(service) | {"messages": turns})
    expect(answer.choices[0].finish_reason, "no finish reason")
    return str(answer.choices[0].message)


@checks.named("tools: refusals name the field")
def refusals(service: Service) -> str:
    told = []
    for options, param in (
        ({"tools": [RECORD, RECORD]}, "tools[1].function.name"),
        (
            {"tool_choice": {"type": "function", "function": {"name": "x"}}},
            "tool_choice.function.name",
        ),
        ({"tools": [NOTHING] * 129}, "tools"),
    ):
        try:
            client_of(service).chat.completions.create(**body(service, **options))
        except BadRequestError as error:
            expect(error.param == param, f"{options}: param {error.param!r}, wanted {param!r}")
            told.append(error.message)
        else:
            expect(False, f"{param}: not refused")
    return str(told)
