"""OpenAI's own client: conversations carried back as they came, and what asks for nothing."""

from __future__ import annotations

from typing import Any

import openai

from loadtest.clients.scripts.checks import ORDER, STORY, Checks, Service, expect
from loadtest.clients.scripts.openai_parts.client import (
    asked,
    chat,
    client_of,
    complete,
    respond,
)

checks = Checks()

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER: Any = {"type": "function", "function": {"name": "weather", "parameters": PARAMETERS}}
CUT = '{"city": "Par'
BREAK = '{"city": "a\nb"}'
QUESTION = {"role": "user", "content": "What is the weather in Paris?"}
GO_ON = {"role": "user", "content": "Go on."}


def call_of(arguments: str) -> dict[str, Any]:
    function = {"name": "weather", "arguments": arguments}
    return {"id": "call_1", "type": "function", "function": function}


def answered_call(arguments: str) -> list[dict[str, Any]]:
    return [
        {"role": "assistant", "content": None, "tool_calls": [call_of(arguments)]},
        {"role": "tool", "tool_call_id": "call_1", "content": "sunny"},
    ]


def item_of_call(arguments: str) -> list[dict[str, Any]]:
    call = {"type": "function_call", "call_id": "call_1", "name": "weather", "status": "incomplete"}
    return [
        {**call, "arguments": arguments},
        {"type": "function_call_output", "call_id": "call_1", "output": "sunny"},
    ]


REFUSAL = {"type": "refusal", "refusal": "I cannot do that."}
REASONED = {"role": "assistant", "content": "Hello.", "reasoning": "I greet."}
# Turns of an assistant that clients send back.
TURNS: dict[str, list[dict[str, Any]]] = {
    **{f"a call with {text!r}": answered_call(text) for text in (CUT, "[]", "null", "", BREAK)},
    "null": [{"role": "assistant", "content": None}],
    "an empty list": [{"role": "assistant", "content": []}],
    "reasoning": [{**REASONED, "reasoning_details": []}],
    "reasoning alone": [{"role": "assistant", "content": None, "reasoning_content": "I greet."}],
    "a refusal": [{"role": "assistant", "content": None, "refusal": "I cannot do that."}],
    "a part with a refusal": [{"role": "assistant", "content": [REFUSAL]}],
    "annotations and an id": [
        {"role": "assistant", "content": "Hello.", "annotations": [], "audio": None, "id": "msg_1"}
    ],
}
MESSAGE = {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed"}
ITEMS: dict[str, list[dict[str, Any]]] = {
    **{f"a call with {text!r}": item_of_call(text) for text in (CUT, "[]", "null", "")},
    "a refusal": [{**MESSAGE, "content": [REFUSAL]}],
    "encrypted reasoning": [
        {"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAAA"},
        {"role": "assistant", "content": "Hello."},
    ],
}
NOTHING: dict[str, Any] = {
    "frequency_penalty": None,
    "logit_bias": None,
    "logprobs": None,
    "max_completion_tokens": None,
    "metadata": None,
    "n": None,
    "parallel_tool_calls": None,
    "presence_penalty": None,
    "reasoning_effort": None,
    "response_format": None,
    "seed": None,
    "service_tier": None,
    "stop": None,
    "stream_options": None,
    "temperature": None,
    "tool_choice": None,
    "tools": None,
    "top_logprobs": None,
    "top_p": None,
    "user": None,
    "verbosity": None,
}


def refused_of(asked: dict[str, Any]) -> list[str]:
    """Make the calls and return the refusals, each with the call's name."""
    refused = []
    for name, ask in asked.items():
        try:
            ask()
        except openai.APIStatusError as error:
            refused.append(f"{name}: {error.message}")
    return refused


@checks.named("history: whatever an assistant said is carried back (chat)")
def turns(service: Service) -> str:
    def asking(said: list[dict[str, Any]]) -> Any:
        messages: Any = [QUESTION, *said, GO_ON]
        return lambda: chat(service, messages=messages, tools=[WEATHER], max_tokens=4)

    refused = refused_of({name: asking(said) for name, said in TURNS.items()})
    expect(not refused, f"{len(refused)} refused: {'; '.join(refused)}")
    return f"{len(TURNS)} turns"


@checks.named("history: whatever an assistant said is carried back (responses)")
def items(service: Service) -> str:
    def asking(said: list[dict[str, Any]]) -> Any:
        given: Any = [QUESTION, *said, GO_ON]
        tool: Any = {"type": "function", "name": "weather", "parameters": PARAMETERS}
        return lambda: respond(service, given, tools=[tool], max_output_tokens=16)

    refused = refused_of({name: asking(said) for name, said in ITEMS.items()})
    expect(not refused, f"{len(refused)} refused: {'; '.join(refused)}")
    return f"{len(ITEMS)} histories"


@checks.named("history: a call that max_tokens cut, as it came")
def cut(service: Service) -> str:
    first = chat(service, ORDER, tools=[WEATHER], tool_choice="required", max_tokens=8)
    message = first.choices[0].message
    results: list[Any] = [
        {"role": "tool", "tool_call_id": call.id, "content": "cut"}
        for call in message.tool_calls or []
    ]
    turns = [{"role": "user", "content": ORDER}, message, *results, GO_ON]
    after = chat(service, messages=turns, tools=[WEATHER], tool_choice="auto", max_tokens=8)
    return f"{message.tool_calls or message.content!r}; {after.choices[0].finish_reason}"


@checks.named("nulls: every field that asks for nothing")
def nulls(service: Service) -> str:
    def asking(fields: dict[str, Any]) -> Any:
        # Past the client's own types, which leave out what is None.
        body = asked(service, max_tokens=4, **fields)
        return lambda: client_of(service).post("/chat/completions", cast_to=object, body=body)

    each = {name: asking({name: value}) for name, value in NOTHING.items()}
    refused = refused_of({**each, "all": asking(NOTHING)})
    expect(not refused, f"{len(refused)} refused: {'; '.join(refused)}")
    return f"{len(NOTHING)} fields"


@checks.named("scores: echo with logprobs and max_tokens 0")
def scores(service: Service) -> str:
    answer = complete(service, STORY, echo=True, logprobs=1, max_tokens=0)
    choice = answer.choices[0]
    expect(choice.text == STORY, f"text {choice.text!r}")
    logprobs: Any = choice.logprobs
    expect(logprobs.token_logprobs[0] is None, f"the first is {logprobs.token_logprobs[0]}")
    expect(all(value <= 0 for value in logprobs.token_logprobs[1:]), "no logprobs")
    return f"{len(logprobs.tokens)} tokens"
