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
MESSAGES = [{"role": "user", "content": STORY}]


def of(service: Service, provider: str = "openai") -> dict[str, Any]:
    """Return the arguments that name the server and the model."""
    return {
        "model": f"{provider}/{service.model}",
        "api_base": service.base_url,
        "api_key": "none",
        "timeout": TIMEOUT_S,
        "num_retries": 0,
    }


@checks.named("completion")
def completion(service: Service) -> str:
    answer = litellm.completion(messages=MESSAGES, max_tokens=30, seed=7, **of(service))
    expect(answer.choices[0].message.content, "no text")
    expect(answer.choices[0].finish_reason in ("stop", "length"), "no finish reason")
    expect(answer.usage.completion_tokens > 0, f"usage {answer.usage}")
    return str(answer.usage)


@checks.named("completion: stream with usage")
def stream(service: Service) -> str:
    whole = litellm.completion(messages=MESSAGES, max_tokens=30, seed=7, **of(service))
    chunks = list(
        litellm.completion(
            messages=MESSAGES,
            max_tokens=30,
            seed=7,
            stream=True,
            stream_options={"include_usage": True},
            **of(service),
        )
    )
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    expect(text == whole.choices[0].message.content, f"the stream said {text!r}")
    built = litellm.stream_chunk_builder(chunks, messages=MESSAGES)
    expect(built.usage.completion_tokens == whole.usage.completion_tokens, f"{built.usage}")
    return f"{len(chunks)} chunks"


@checks.named("acompletion: whole and stream, four at once")
def asynchronous(service: Service) -> str:
    async def one(seed: int) -> tuple[str, str]:
        options = {"messages": MESSAGES, "max_tokens": 20, "seed": seed, **of(service)}
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
    answer = litellm.completion(
        messages=[{"role": "user", "content": ORDER}],
        response_format=Order,
        temperature=0,
        **of(service),
    )
    return expect_order(json.loads(answer.choices[0].message.content))


@checks.named("completion: json_schema as a dictionary")
def json_schema(service: Service) -> str:
    answer = litellm.completion(
        messages=[{"role": "user", "content": ORDER}],
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "order", "schema": Order.model_json_schema()},
        },
        temperature=0,
        **of(service),
    )
    return expect_order(json.loads(answer.choices[0].message.content))


@checks.named("completion: json_object")
def json_object(service: Service) -> str:
    answer = litellm.completion(
        messages=[{"role": "user", "content": ORDER}],
        response_format={"type": "json_object"},
        temperature=0,
        **of(service),
    )
    found = json.loads(answer.choices[0].message.content)
    expect(isinstance(found, dict), f"{found!r} is no object")
    return json.dumps(found)


@checks.named("completion: logprobs, n, stop")
def logprobs(service: Service) -> str:
    answer = litellm.completion(
        messages=MESSAGES,
        max_tokens=20,
        logprobs=True,
        top_logprobs=2,
        n=2,
        stop=["."],
        **of(service),
    )
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
    answer = litellm.completion(
        messages=[{"role": "user", "content": "What is the opposite of big?"}],
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
        (litellm.ContextWindowExceededError, {"messages": [_long_message()]}),
    ]
    names = []
    for kind, change in cases:
        try:
            litellm.completion(**{**of(service), "messages": MESSAGES, **change})
        except openai.OpenAIError as error:
            expect(isinstance(error, kind), f"{type(error).__name__}, not {kind.__name__}: {error}")
            names.append(type(error).__name__)
        else:
            expect(False, f"nothing was raised, {kind.__name__} expected")
    return str(names)


def _long_message() -> dict[str, str]:
    return {"role": "user", "content": "word " * 20_000}


@checks.named("tools: a required call")
def tools(service: Service) -> str:
    tool = {
        "type": "function",
        "function": {"name": "record", "parameters": Order.model_json_schema()},
    }
    answer = litellm.completion(
        messages=[{"role": "user", "content": ORDER}],
        tools=[tool],
        tool_choice="required",
        temperature=0,
        **of(service),
    )
    calls = answer.choices[0].message.tool_calls or []
    expect(len(calls) == 1, f"calls {calls}")
    return expect_order(json.loads(calls[0].function.arguments))


if __name__ == "__main__":
    checks.main()
