"""OpenAI's own client: the Responses API, which newer frameworks ask first."""

from __future__ import annotations

import json
from typing import Any

import openai

from loadtest.clients.scripts.checks import ORDER, Checks, Service, expect, expect_order
from loadtest.clients.scripts.openai_parts.client import chat, client_of, respond
from loadtest.clients.scripts.order import Order

checks = Checks()

LOGPROBS: Any = ["message.output_text.logprobs"]
WEATHER: Any = {
    "type": "function",
    "name": "weather",
    "description": "The weather of a city.",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string", "maxLength": 20}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


@checks.named("responses: the text of a chat")
def text(service: Service) -> str:
    answer = respond(service, temperature=0, max_output_tokens=40)
    told = chat(service, temperature=0, max_completion_tokens=40).choices[0].message.content
    expect(answer.output_text, "no text")
    expect(answer.output_text == told, repr(answer.output_text))
    expect(answer.usage and answer.usage.output_tokens > 0, f"usage {answer.usage}")
    return str(answer.output_text)


@checks.named("responses: stream")
def stream(service: Service) -> str:
    text, kinds = "", []
    for event in respond(service, temperature=0, max_output_tokens=40, stream=True):
        kinds.append(event.type)
        if event.type == "response.output_text.delta":
            text += event.delta
        if event.type in ("response.completed", "response.incomplete"):
            expect(event.response.output_text == text, f"the stream said {text!r}")
    expect(kinds[:2] == ["response.created", "response.in_progress"], f"begins with {kinds[:2]}")
    expect(kinds[-1] in ("response.completed", "response.incomplete"), f"ends with {kinds[-1]}")
    return text


@checks.named("responses: parse into a pydantic model")
def parse(service: Service) -> str:
    answer = client_of(service).responses.parse(
        model=service.model, input=ORDER, temperature=0, text_format=Order
    )
    parsed = answer.output_parsed
    return expect_order(parsed.model_dump() if parsed else {})


@checks.named("responses: stream helper, parsed")
def stream_helper(service: Service) -> str:
    with client_of(service).responses.stream(
        model=service.model, input=ORDER, temperature=0, text_format=Order
    ) as events:
        kinds = {event.type for event in events}
        parsed = events.get_final_response().output_parsed
    expect("response.output_text.delta" in kinds, f"only events {kinds}")
    return expect_order(parsed.model_dump() if parsed else {})


@checks.named("responses: a function is called, and its result sent back")
def function(service: Service) -> str:
    asked: Any = {"tools": [WEATHER], "temperature": 0}
    question: Any = {"role": "user", "content": "What is the weather in Delhi?"}
    answer = respond(
        service, [question], tool_choice="required", parallel_tool_calls=False, **asked
    )
    [call] = answer.output
    expect(call.type == "function_call", f"output {answer.output}")
    arguments = json.loads(call.arguments)
    expect(set(arguments) == {"city"}, f"arguments {arguments}")
    result: Any = {
        "type": "function_call_output",
        "call_id": call.call_id,
        "output": "sunny",
    }
    turns = [question, call.model_dump(), result]
    after = respond(service, turns, tool_choice="none", max_output_tokens=20, **asked)
    return f"{arguments}; {after.output_text!r}"


@checks.named("responses: allowed_tools")
def allowed(service: Service) -> str:
    other: Any = {**WEATHER, "name": "news"}
    choice: Any = {
        "type": "allowed_tools",
        "mode": "required",
        "tools": [{"type": "function", "name": "news"}],
    }
    answer = respond(
        service,
        "What is the weather in Delhi?",
        tools=[WEATHER, other],
        tool_choice=choice,
        parallel_tool_calls=False,
        temperature=0,
    )
    names = [item.name for item in answer.output if item.type == "function_call"]
    expect(names == ["news"], f"calls {names}")
    return str(names)


@checks.named("responses: logprobs")
def logprobs(service: Service) -> str:
    wanted: Any = {"include": LOGPROBS, "top_logprobs": 3}
    answer = respond(service, max_output_tokens=10, temperature=0, **wanted)
    part: Any = answer.output[0].content[0]
    joined = "".join(entry.token for entry in part.logprobs)
    expect(joined == answer.output_text != "", f"tokens join to {joined!r}")
    expect(all(len(entry.top_logprobs) >= 3 for entry in part.logprobs), "fewer alternatives")
    return f"{len(part.logprobs)} tokens"


@checks.named("responses: what is stored elsewhere is refused by name")
def refused(service: Service) -> str:
    try:
        respond(service, previous_response_id="resp_1")
    except openai.BadRequestError as error:
        expect(error.param == "previous_response_id", f"param {error.param}")
        return error.message
    expect(False, "it was accepted")
    raise AssertionError
