"""OpenAI's own client: both completion routes, streams, constraints, models, errors."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import openai
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletion
from pydantic import BaseModel

from loadtest.clients.scripts.checks import (
    ORDER,
    STORY,
    TIMEOUT_S,
    Checks,
    Service,
    expect,
    expect_order,
)

checks = Checks()


class Order(BaseModel):
    """The record that ORDER asks for."""

    customer: str
    item: str
    quantity: int
    price: float
    city: str


def client_of(service: Service) -> OpenAI:
    return OpenAI(base_url=service.base_url, api_key="none", timeout=TIMEOUT_S, max_retries=0)


def story(service: Service, seed: int = 7) -> ChatCompletion:
    return client_of(service).chat.completions.create(
        model=service.model,
        messages=[{"role": "user", "content": STORY}],
        max_completion_tokens=40,
        seed=seed,
    )


def story_text(service: Service) -> str:
    return story(service).choices[0].message.content or ""


@checks.named("models: list, retrieve")
def models(service: Service) -> str:
    client = client_of(service)
    names = [model.id for model in client.models.list()]
    expect(service.model in names, f"{service.model} is not in {names}")
    return client.models.retrieve(service.model).id


@checks.named("chat")
def chat(service: Service) -> str:
    answer = story(service)
    usage = answer.usage
    expect(usage is not None, "the answer has no usage")
    expect(answer.choices[0].message.content, "the answer has no text")
    expect(answer.choices[0].message.role == "assistant", "the role is not assistant")
    expect(answer.choices[0].finish_reason in ("stop", "length"), "no finish reason")
    return str(usage)


@checks.named("chat: message has all fields")
def chat_fields(service: Service) -> str:
    message = story(service).choices[0].message
    expect("refusal" in message.model_fields_set, "message.refusal was not sent")
    return "message.refusal was sent"


@checks.named("chat: a seed gives one text")
def seeds(service: Service) -> str:
    first, again, other = (story(service, seed) for seed in (7, 7, 8))
    texts = [answer.choices[0].message.content for answer in (first, again, other)]
    expect(texts[0] == texts[1], f"seed 7 gave {texts[0]!r}, then {texts[1]!r}")
    expect(texts[0] != texts[2], "seeds 7 and 8 gave the same text")
    return repr(texts[0])


@checks.named("chat: stream with usage")
def chat_stream(service: Service) -> str:
    stream = client_of(service).chat.completions.create(
        model=service.model,
        messages=[{"role": "user", "content": STORY}],
        max_completion_tokens=40,
        seed=7,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    expect(text == story_text(service), f"the stream said {text!r}")
    expect(chunks[-1].usage is not None, "the last chunk has no usage")
    return f"{len(chunks)} chunks"


@checks.named("chat: stream helper")
def chat_stream_helper(service: Service) -> str:
    with client_of(service).chat.completions.stream(
        model=service.model,
        messages=[{"role": "user", "content": ORDER}],
        response_format=Order,
        temperature=0,
    ) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion()
    parsed = answer.choices[0].message.parsed
    expect(isinstance(parsed, Order), f"parsed into {parsed!r}")
    expect({"content.delta", "content.done"} <= kinds, f"only events {kinds}")
    return expect_order(parsed.model_dump() if parsed else {})


@checks.named("chat: stream_options of other servers' clients")
def stream_options(service: Service) -> str:
    stream = client_of(service).chat.completions.create(
        model=service.model,
        messages=[{"role": "user", "content": STORY}],
        max_completion_tokens=20,
        stream=True,
        stream_options={"include_usage": True, "include_obfuscation": False},
        extra_body={
            "stream_options": {
                "include_usage": True,
                "include_obfuscation": True,
                "continuous_usage_stats": True,
            }
        },
    )
    counts = [chunk.usage.completion_tokens for chunk in stream if chunk.usage]
    expect(len(counts) > 2, f"{len(counts)} chunks had a usage")
    expect(counts == sorted(counts), f"completion tokens went {counts}")
    return f"completion tokens {counts}"


@checks.named("chat: json_schema from a pydantic model (parse)")
def parse(service: Service) -> str:
    answer = client_of(service).chat.completions.parse(
        model=service.model,
        messages=[{"role": "user", "content": ORDER}],
        response_format=Order,
        temperature=0,
    )
    parsed = answer.choices[0].message.parsed
    return expect_order(parsed.model_dump() if parsed else {})


@checks.named("chat: json_object")
def json_object(service: Service) -> str:
    answer = client_of(service).chat.completions.create(
        model=service.model,
        messages=[{"role": "user", "content": ORDER}],
        response_format={"type": "json_object"},
        temperature=0,
    )
    found = json.loads(answer.choices[0].message.content or "")
    expect(isinstance(found, dict), f"{found!r} is no object")
    return json.dumps(found)


@checks.named("chat: logprobs")
def logprobs(service: Service) -> str:
    answer = client_of(service).chat.completions.create(
        model=service.model,
        messages=[{"role": "user", "content": STORY}],
        max_completion_tokens=10,
        logprobs=True,
        top_logprobs=3,
    )
    content = answer.choices[0].logprobs.content if answer.choices[0].logprobs else None
    expect(content, "the answer has no logprobs")
    entries = content or []
    joined = "".join(entry.token for entry in entries)
    expect(joined == answer.choices[0].message.content, f"tokens join to {joined!r}")
    expect(all(len(entry.top_logprobs) >= 3 for entry in entries), "fewer than 3 alternatives")
    return f"{len(entries)} tokens"


@checks.named("chat: n=3, stop, a conversation sent back")
def conversation(service: Service) -> str:
    client = client_of(service)
    first = client.chat.completions.create(
        model=service.model,
        messages=[{"role": "user", "content": STORY}],
        max_completion_tokens=40,
        n=3,
        stop=["."],
        seed=7,
    )
    expect(len(first.choices) == 3, f"{len(first.choices)} choices")
    expect(all("." not in (c.message.content or "") for c in first.choices), "stop was ignored")
    second = client.chat.completions.create(
        model=service.model,
        messages=[
            {"role": "system", "content": "You tell stories."},
            {"role": "user", "content": [{"type": "text", "text": STORY}]},
            first.choices[0].message.model_dump(),  # type: ignore[list-item]  # as users do it
            {"role": "user", "content": "Go on."},
        ],
        max_completion_tokens=10,
    )
    return repr(second.choices[0].message.content)


@checks.named("completions: text, stream, token ids")
def completions(service: Service) -> str:
    client = client_of(service)
    whole = client.completions.create(
        model=service.model, prompt="Once upon a time", max_tokens=20, seed=7
    )
    stream = client.completions.create(
        model=service.model, prompt="Once upon a time", max_tokens=20, seed=7, stream=True
    )
    text = "".join(chunk.choices[0].text for chunk in stream if chunk.choices)
    expect(text == whole.choices[0].text, f"the stream said {text!r}")
    ids = client.completions.create(model=service.model, prompt=[5, 6, 7], max_tokens=3)
    expect(ids.usage and ids.usage.prompt_tokens == 3, "three ids are not three prompt tokens")
    return repr(text)


@checks.named("completions: a list of prompts")
def prompts(service: Service) -> str:
    client = client_of(service)
    texts = ["Once upon a time", "def add(a, b):"]
    answer = client.completions.create(
        model=service.model, prompt=texts, max_tokens=12, temperature=0
    )
    alone = [
        client.completions.create(model=service.model, prompt=text, max_tokens=12, temperature=0)
        for text in texts
    ]
    expect([choice.index for choice in answer.choices] == [0, 1], "not choices 0 and 1")
    together = [choice.text for choice in answer.choices]
    expect(together == [one.choices[0].text for one in alone], f"together: {together}")
    return repr(together)


@checks.named("completions: logprobs, echo")
def completion_logprobs(service: Service) -> str:
    answer = client_of(service).completions.create(
        model=service.model, prompt="Once upon a time", max_tokens=5, logprobs=2, echo=True
    )
    shape = answer.choices[0].logprobs
    expect(shape and shape.tokens and shape.token_logprobs, "no logprobs")
    tokens = (shape.tokens if shape else None) or []
    expect("".join(tokens) == answer.choices[0].text, "tokens do not join to the text")
    return f"{len(tokens)} tokens"


@checks.named("async: eight at once")
def at_once(service: Service) -> str:
    async def ask() -> list[ChatCompletion]:
        async with AsyncOpenAI(
            base_url=service.base_url, api_key="none", timeout=TIMEOUT_S, max_retries=0
        ) as client:
            return await asyncio.gather(
                *(
                    client.chat.completions.create(
                        model=service.model,
                        messages=[{"role": "user", "content": STORY}],
                        max_completion_tokens=20,
                        seed=seed,
                    )
                    for seed in range(8)
                )
            )

    answers = asyncio.run(ask())
    expect(len({answer.id for answer in answers}) == 8, "ids repeat")
    return f"{len(answers)} answers"


@checks.named("raw response: request id")
def raw(service: Service) -> str:
    answer = client_of(service).chat.completions.with_raw_response.create(
        model=service.model,
        messages=[{"role": "user", "content": STORY}],
        max_completion_tokens=1,
    )
    expect(answer.parse()._request_id, "no x-request-id")
    return str(answer.headers.get("x-request-id"))


def raised(kind: type[openai.APIStatusError], call: Callable[[], object]) -> openai.APIStatusError:
    try:
        call()
    except openai.APIError as error:
        expect(type(error) is kind, f"{type(error).__name__} instead of {kind.__name__}: {error}")
        if isinstance(error, kind):
            return error
    expect(False, f"nothing was raised, {kind.__name__} expected")
    raise AssertionError


@checks.named("errors: unknown model, bad value, too long, unknown route")
def errors(service: Service) -> str:
    client = client_of(service)

    def ask(text: str = "Hi", model: str = service.model, temperature: float = 1.0) -> object:
        return client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": text}], temperature=temperature
        )

    found = [
        raised(openai.NotFoundError, lambda: ask(model="no-such-model")),
        raised(openai.BadRequestError, lambda: ask(temperature=9.0)),
        raised(openai.BadRequestError, lambda: ask(text="word " * 20_000)),
        raised(openai.NotFoundError, lambda: client.embeddings.create(model="m", input="x")),
    ]
    expect(found[0].param == "model", f"param {found[0].param!r} of an unknown model")
    expect(found[1].param == "temperature", f"param {found[1].param!r} of a bad temperature")
    codes = [error.code for error in found]
    expect(codes[2] == "context_length_exceeded", f"code {codes[2]!r} of a long prompt")
    return str(codes)


@checks.named("errors: a schema that cannot be served")
def schema_error(service: Service) -> str:
    error = raised(
        openai.BadRequestError,
        lambda: client_of(service).chat.completions.create(
            model=service.model,
            messages=[{"role": "user", "content": ORDER}],
            response_format={
                "type": "json_schema",
                "json_schema": {"name": "s", "schema": {"type": "no-such-type"}},
            },
        ),
    )
    return str(error.message)


@checks.named("errors: time-out of the client")
def timeout(service: Service) -> str:
    try:
        client_of(service).with_options(timeout=0.001).chat.completions.create(
            model=service.model, messages=[{"role": "user", "content": STORY}]
        )
    except openai.APITimeoutError as error:
        return str(error)
    expect(False, "no APITimeoutError")
    return ""


@checks.named("tools: a required call", needs="tools")
def tools(service: Service) -> str:
    answer = client_of(service).chat.completions.create(
        model=service.model,
        messages=[{"role": "user", "content": ORDER}],
        tools=[
            {
                "type": "function",
                "function": {"name": "record", "parameters": Order.model_json_schema()},
            }
        ],
        tool_choice="required",
        temperature=0,
    )
    calls = answer.choices[0].message.tool_calls or []
    expect(len(calls) == 1 and calls[0].type == "function", f"calls: {calls}")
    return str(calls)


@checks.named("responses", needs="the Responses API")
def responses(service: Service) -> str:
    answer = client_of(service).responses.create(model=service.model, input=STORY)
    return answer.output_text


if __name__ == "__main__":
    checks.main()
