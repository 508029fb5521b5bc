"""instructor over OpenAI's client: its modes of asking for an object."""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Any

import instructor
from openai import AsyncOpenAI, OpenAI

from loadtest.clients.scripts.checks import ORDER, TIMEOUT_S, Checks, Service, expect, expect_order
from loadtest.clients.scripts.order import Order

checks = Checks()


def options(service: Service) -> dict[str, Any]:
    return {
        "model": service.model,
        "messages": [{"role": "user", "content": ORDER}],
        "temperature": 0,
        "max_retries": 0,
    }


def connection(service: Service) -> dict[str, Any]:
    return {
        "base_url": service.base_url,
        "api_key": "none",
        "timeout": TIMEOUT_S,
        "max_retries": 0,
    }


def order_in(service: Service, mode: instructor.Mode) -> str:
    client = instructor.from_openai(OpenAI(**connection(service)), mode=mode)
    order = client.chat.completions.create(response_model=Order, **options(service))
    return expect_order(order.model_dump())


for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.JSON, instructor.Mode.TOOLS):
    checks.named(f"mode {mode.name}")(partial(order_in, mode=mode))


@checks.named("mode JSON_SCHEMA: async")
def asynchronous(service: Service) -> str:
    async def ask() -> Order:
        client = instructor.from_openai(
            AsyncOpenAI(**connection(service)), mode=instructor.Mode.JSON_SCHEMA
        )
        order: Order = await client.chat.completions.create(
            response_model=Order, **options(service)
        )
        return order

    return expect_order(asyncio.run(ask()).model_dump())


def streamed(service: Service, mode: instructor.Mode) -> str:
    client = instructor.from_openai(OpenAI(**connection(service)), mode=mode)
    parts = list(client.chat.completions.create_partial(response_model=Order, **options(service)))
    expect(len(parts) > 1, f"{len(parts)} parts")
    return expect_order(parts[-1].model_dump())


for mode in (instructor.Mode.JSON_SCHEMA, instructor.Mode.TOOLS):
    checks.named(f"mode {mode.name}: partial objects of a stream")(partial(streamed, mode=mode))


@checks.named("mode JSON_SCHEMA: with the completion")
def with_completion(service: Service) -> str:
    client = instructor.from_openai(OpenAI(**connection(service)), mode=instructor.Mode.JSON_SCHEMA)
    order, answer = client.chat.completions.create_with_completion(
        response_model=Order, **options(service)
    )
    expect(answer.usage.completion_tokens > 0, f"usage {answer.usage}")
    return expect_order(order.model_dump())


if __name__ == "__main__":
    checks.main()
