"""pydantic-ai: agents with text, native (json_schema), prompted and tool output."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

from pydantic_ai import Agent, NativeOutput, PromptedOutput
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider
from pydantic_ai.settings import ModelSettings

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


def agent_of(service: Service, **options: Any) -> Agent[None, Any]:
    model = OpenAIChatModel(
        service.model, provider=OpenAIProvider(base_url=service.base_url, api_key="none")
    )
    return Agent(model, retries=0, **options)


def settings(**others: Any) -> ModelSettings:
    return ModelSettings(timeout=TIMEOUT_S, max_tokens=100, **others)


@checks.named("text")
def text(service: Service) -> str:
    agent = agent_of(service, instructions="You tell stories.")
    answers = [agent.run_sync(STORY, model_settings=settings(seed=7)) for _ in range(2)]
    expect(answers[0].output == answers[1].output, "one seed gave two texts")
    return repr(answers[0].output)


@checks.named("text: a conversation")
def conversation(service: Service) -> str:
    agent = agent_of(service)
    first = agent.run_sync(STORY, model_settings=settings(seed=7))
    second = agent.run_sync(
        "Go on.", message_history=first.all_messages(), model_settings=settings(seed=7)
    )
    return repr(second.output)


@checks.named("text: stream")
def stream(service: Service) -> str:
    async def ask() -> tuple[list[str], int]:
        agent = agent_of(service)
        async with agent.run_stream(STORY, model_settings=settings(seed=7)) as answer:
            parts = [part async for part in answer.stream_text(delta=True, debounce_by=None)]
            usage = answer.usage() if callable(answer.usage) else answer.usage
            return parts, usage.output_tokens

    parts, num_tokens = asyncio.run(ask())
    whole = agent_of(service).run_sync(STORY, model_settings=settings(seed=7)).output
    expect("".join(parts) == whole, f"the stream said {''.join(parts)!r}")
    expect(num_tokens > 0, "the stream had no usage")
    return f"{len(parts)} parts, {num_tokens} tokens"


def structured(service: Service, output_type: Any) -> str:
    agent = agent_of(service, output_type=output_type)
    answer = agent.run_sync(ORDER, model_settings=settings(temperature=0))
    return expect_order(answer.output.model_dump())


def streamed(service: Service, output_type: Any) -> str:
    async def ask() -> Order:
        agent = agent_of(service, output_type=output_type)
        async with agent.run_stream(ORDER, model_settings=settings(temperature=0)) as answer:
            order: Order = await answer.get_output()
            return order

    return expect_order(asyncio.run(ask()).model_dump())


for name, output_type, asking in (
    ("NativeOutput (json_schema)", NativeOutput(Order), structured),
    ("NativeOutput (json_schema): stream", NativeOutput(Order), streamed),
    ("PromptedOutput", PromptedOutput(Order), structured),
    ("output_type by its default (a tool)", Order, structured),
    ("output_type by its default (a tool): stream", Order, streamed),
):
    checks.named(name)(partial(asking, output_type=output_type))


if __name__ == "__main__":
    checks.main()
