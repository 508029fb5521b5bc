"""litellm: the model as `openai/NAME` (chat) and `text-completion-openai/NAME` (text)."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import litellm
import openai

from loadtest.clients.scripts.checks import (
    ORDER,
    STORY,
    TIMEOUT_S,
    Checks,
    Service,
    expect,
    expect_order,
)
from loadtest.clients.scripts.order import Order

checks = Checks()


def said(text: str = STORY) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]


def of(service: Service, provider: str = "openai") -> dict[str, Any]:
    """Return the arguments that name the server and the model."""
    return {
        "model": f"{provider}/{service.model}",
        "api_base": service.base_url,
        "api_key": "none",
        "timeout": TIMEOUT_S,
        "num_retries": 0,
    }


def complete(service: Service, text: str = STORY, **options: Any) -> Any:
    return litellm.completion(messages=said(text), **{**of(service), **options})


def record_of(service: Service, wanted: Any) -> str:
    answer = complete(service, ORDER, response_format=wanted, temperature=0)
    return str(answer.choices[0].message.content)


@checks.named("completion")
def completion(service: Service) -> str:
    answer = complete(service, max_tokens=30, seed=7)
    expect(answer.choices[0].message.content, "no text")
    expect(answer.choices[0].finish_reason in ("stop", "length"), "no finish reason")
    expect(answer.usage.completion_tokens > 0, f"usage {answer.usage}")
    return str(answer.usage)


@checks.named("completion: stream with usage")
def stream(service: Service) -> str:
    options: dict[str, Any] = {"max_tokens": 30, "seed": 7}
    whole = complete(service, **options)
    with_usage: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(complete(service, **options, **with_usage))
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    expect(text == whole.choices[0].message.content, f"the stream said {text!r}")
    built = litellm.stream_chunk_builder(chunks, messages=said())
    expect(built.usage.completion_tokens == whole.usage.completion_tokens, f"{built.usage}")
    return f"{len(chunks)} chunks"


@checks.named("acompletion: whole and stream, four at once")
def asynchronous(service: Service) -> str:
    async def one(seed: int) -> tuple[str, str]:
        options = {"messages": said(), "max_tokens": 20, "seed": seed, **of(service)}
        whole = await litellm.acompletion(**options)
        text = ""
        async for chunk in await litellm.acompletion(stream=True, **options):
            text += chunk.choices[0].delta.content or ""
        return whole.choices[0].message.content, text

    async def four() -> list[tuple[str, str]]:
        return await asyncio.gather(*(one(seed) for seed in range(4)))

    pairs = asyncio.run(four())
    expect(all(whole == text for whole, text in pairs), f"{pairs}")
    return f"{len(pairs)} pairs"


@checks.named("completion: json_schema from a pydantic model")
def json_schema_model(service: Service) -> str:
    return expect_order(json.loads(record_of(service, Order)))


@checks.named("completion: json_schema as a dictionary")
def json_schema(service: Service) -> str:
    schema = {"name": "order", "schema": Order.model_json_schema()}
    wanted = {"type": "json_schema", "json_schema": schema}
    return expect_order(json.loads(record_of(service, wanted)))


@checks.named("completion: json_object")
def json_object(service: Service) -> str:
    found = json.loads(record_of(service, {"type": "json_object"}))
    expect(isinstance(found, dict), f"{found!r} is no object")
    return json.dumps(found)


@checks.named("completion: logprobs, n, stop")
def logprobs(service: Service) -> str:
    answer = complete(service, max_tokens=20, logprobs=True, top_logprobs=2, n=2, stop=["."])
    expect(len(answer.choices) == 2, f"{len(answer.choices)} choices")
    entries = answer.choices[0].logprobs.content
    return f"{len(entries)} tokens"


@checks.named("text_completion")
def text(service: Service) -> str:
    whom = of(service, "text-completion-openai")
    answer = litellm.text_completion(prompt="Once upon a time", max_tokens=20, seed=7, **whom)
    expect(answer.choices[0].text, "no text")
    return repr(answer.choices[0].text)


@checks.named("text_completion: stream")
def text_stream(service: Service) -> str:
    whom = of(service, "text-completion-openai")
    options = {"prompt": "Once upon a time", "max_tokens": 20, "seed": 7, **whom}
    whole = litellm.text_completion(**options).choices[0].text
    text = "".join(
        chunk.choices[0].text or ""
        for chunk in litellm.text_completion(stream=True, **options)
        if chunk.choices
    )
    expect(text == whole, f"the stream said {text!r}, the whole was {whole!r}")
    return repr(text)


@checks.named("text_completion: a list of prompts")
def prompts(service: Service) -> str:
    whom = of(service, "text-completion-openai")
    answer = litellm.text_completion(
        prompt=["Once upon a time", "There was a dog"], max_tokens=10, **whom
    )
    expect(len(answer.choices) == 2, f"{len(answer.choices)} choices")
    return repr([choice.text for choice in answer.choices])


@checks.named("hosted_vllm: completion with guided choice")
def hosted_vllm(service: Service) -> str:
    answer = complete(
        service,
        "What is the opposite of big?",
        temperature=0,
        extra_body={"structured_outputs": {"choice": ["fast", "small", "cold"]}},
        **of(service, "hosted_vllm"),
    )
    text = answer.choices[0].message.content
    expect(text in ("fast", "small", "cold"), f"answer {text!r}")
    return repr(text)


@checks.named("errors: the right exceptions")
def errors(service: Service) -> str:
    cases: list[tuple[type[Exception], dict[str, Any]]] = [
        (litellm.NotFoundError, {"model": "openai/no-such-model"}),
        (litellm.BadRequestError, {"temperature": 9.0}),
        (litellm.ContextWindowExceededError, {"text": "word " * 20_000}),
    ]
    names = []
    for kind, change in cases:
        try:
            complete(service, **change)
        except openai.OpenAIError as error:
            expect(isinstance(error, kind), f"{type(error).__name__}, not {kind.__name__}: {error}")
            names.append(type(error).__name__)
        else:
            expect(False, f"nothing was raised, {kind.__name__} expected")
    return str(names)


@checks.named("tools: a required call")
def tools(service: Service) -> str:
    tool = {
        "type": "function",
        "function": {"name": "record", "parameters": Order.model_json_schema()},
    }
    answer = complete(service, ORDER, tools=[tool], tool_choice="required", temperature=0)
    calls = answer.choices[0].message.tool_calls or []
    expect(len(calls) == 1, f"calls {calls}")
    return expect_order(json.loads(calls[0].function.arguments))


if __name__ == "__main__":
    checks.main()
