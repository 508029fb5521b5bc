"""instructor over OpenAI's client: its modes of asking for an object."""

from __future__ import annotations

import asyncio
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


@checks.named("mode JSON_SCHEMA")
def json_schema(service: Service) -> str:
    return order_in(service, instructor.Mode.JSON_SCHEMA)


@checks.named("mode JSON")
def json_mode(service: Service) -> str:
    return order_in(service, instructor.Mode.JSON)


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


@checks.named("mode JSON_SCHEMA: partial objects of a stream")
def partial(service: Service) -> str:
    client = instructor.from_openai(OpenAI(**connection(service)), mode=instructor.Mode.JSON_SCHEMA)
    parts = list(client.chat.completions.create_partial(response_model=Order, **options(service)))
    expect(len(parts) > 1, f"{len(parts)} parts")
    return expect_order(parts[-1].model_dump())


@checks.named("mode JSON_SCHEMA: with the completion")
def with_completion(service: Service) -> str:
    client = instructor.from_openai(OpenAI(**connection(service)), mode=instructor.Mode.JSON_SCHEMA)
    order, answer = client.chat.completions.create_with_completion(
        response_model=Order, **options(service)
    )
    expect(answer.usage.completion_tokens > 0, f"usage {answer.usage}")
    return expect_order(order.model_dump())


@checks.named("mode TOOLS")
def tools(service: Service) -> str:
    return order_in(service, instructor.Mode.TOOLS)


@checks.named("mode TOOLS: partial objects of a stream")
def partial_tools(service: Service) -> str:
    client = instructor.from_openai(OpenAI(**connection(service)), mode=instructor.Mode.TOOLS)
    parts = list(client.chat.completions.create_partial(response_model=Order, **options(service)))
    expect(len(parts) > 1, f"{len(parts)} parts")
    return expect_order(parts[-1].model_dump())


if __name__ == "__main__":
    checks.main()
