"""OpenAI's own client: chat, streams, constraints, models; with the checks of the other files."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from openai import AsyncOpenAI
from openai.types.chat import ChatCompletion

from loadtest.clients.scripts.checks import (
    ORDER,
    STORY,
    TIMEOUT_S,
    Checks,
    Service,
    expect,
    expect_order,
)
from loadtest.clients.scripts.openai_parts import (
    carried_back,
    completions,
    errors,
    pydantic_tools,
    responses,
    tools,
)
from loadtest.clients.scripts.openai_parts.client import asked, chat, client_of
from loadtest.clients.scripts.order import Order

checks = Checks()


def story(service: Service, seed: int = 7) -> ChatCompletion:
    answer: ChatCompletion = chat(service, max_completion_tokens=40, seed=seed)
    return answer


def story_text(service: Service) -> str:
    return story(service).choices[0].message.content or ""


@checks.named("models: list, retrieve")
def models(service: Service) -> str:
    client = client_of(service)
    names = [model.id for model in client.models.list()]
    expect(service.model in names, f"{service.model} is not in {names}")
    return client.models.retrieve(service.model).id


@checks.named("chat")
def whole(service: Service) -> str:
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
    options: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
    chunks = list(chat(service, max_completion_tokens=40, seed=7, **options))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    expect(text == story_text(service), f"the stream said {text!r}")
    expect(chunks[-1].usage is not None, "the last chunk has no usage")
    return f"{len(chunks)} chunks"


@checks.named("chat: stream helper")
def chat_stream_helper(service: Service) -> str:
    wanted = asked(service, ORDER, response_format=Order, temperature=0)
    with client_of(service).chat.completions.stream(**wanted) as stream:
        kinds = {event.type for event in stream}
        answer = stream.get_final_completion()
    parsed = answer.choices[0].message.parsed
    expect(isinstance(parsed, Order), f"parsed into {parsed!r}")
    expect({"content.delta", "content.done"} <= kinds, f"only events {kinds}")
    return expect_order(parsed.model_dump() if parsed else {})


@checks.named("chat: stream_options of other servers' clients")
def stream_options(service: Service) -> str:
    stream = chat(
        service,
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
    wanted = asked(service, ORDER, response_format=Order, temperature=0)
    answer = client_of(service).chat.completions.parse(**wanted)
    parsed = answer.choices[0].message.parsed
    return expect_order(parsed.model_dump() if parsed else {})


@checks.named("chat: json_object")
def json_object(service: Service) -> str:
    answer = chat(service, ORDER, response_format={"type": "json_object"}, temperature=0)
    found = json.loads(answer.choices[0].message.content or "")
    expect(isinstance(found, dict), f"{found!r} is no object")
    return json.dumps(found)


@checks.named("chat: logprobs")
def logprobs(service: Service) -> str:
    answer = chat(service, max_completion_tokens=10, logprobs=True, top_logprobs=3)
    content = answer.choices[0].logprobs.content if answer.choices[0].logprobs else None
    expect(content, "the answer has no logprobs")
    entries = content or []
    joined = "".join(entry.token for entry in entries)
    expect(joined == answer.choices[0].message.content, f"tokens join to {joined!r}")
    expect(all(len(entry.top_logprobs) >= 3 for entry in entries), "fewer than 3 alternatives")
    return f"{len(entries)} tokens"


@checks.named("chat: n=3, stop, a conversation sent back")
def conversation(service: Service) -> str:
    first = chat(service, max_completion_tokens=40, n=3, stop=["."], seed=7)
    expect(len(first.choices) == 3, f"{len(first.choices)} choices")
    expect(all("." not in (c.message.content or "") for c in first.choices), "stop was ignored")
    second = chat(
        service,
        messages=[
            {"role": "system", "content": "You tell stories."},
            {"role": "user", "content": [{"type": "text", "text": STORY}]},
            first.choices[0].message.model_dump(),  # as users do it
            {"role": "user", "content": "Go on."},
        ],
        max_completion_tokens=10,
    )
    return repr(second.choices[0].message.content)


@checks.named("async: eight at once")
def at_once(service: Service) -> str:
    async def ask() -> list[ChatCompletion]:
        async with AsyncOpenAI(
            base_url=service.base_url, api_key="none", timeout=TIMEOUT_S, max_retries=0
        ) as client:
            return await asyncio.gather(
                *(
                    client.chat.completions.create(
                        **asked(service, max_completion_tokens=20, seed=seed)
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
        **asked(service, max_completion_tokens=1)
    )
    expect(answer.parse()._request_id, "no x-request-id")
    return str(answer.headers.get("x-request-id"))


checks.include(completions.checks)
checks.include(errors.checks)
checks.include(responses.checks)
checks.include(tools.checks)
checks.include(pydantic_tools.checks)
checks.include(carried_back.checks)

if __name__ == "__main__":
    checks.main()
