"""openai-agents over chat completions, as its documentation says for servers of others, and over
Responses, its default."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent, ModelSettings, OpenAIChatCompletionsModel, Runner, set_tracing_disabled

from loadtest.clients.scripts import openai_agents_responses
from loadtest.clients.scripts.checks import STORY, Checks, Service, expect
from loadtest.clients.scripts.openai_agents_responses import (
    client_of,
    recorded,
    streamed,
    told,
    weather_tool,
)
from loadtest.clients.scripts.order import Order

checks = Checks()
set_tracing_disabled(True)


def agent_of(service: Service, **options: Any) -> Agent[None]:
    model = OpenAIChatCompletionsModel(model=service.model, openai_client=client_of(service))
    given = {
        "name": "assistant",
        "model": model,
        "model_settings": ModelSettings(temperature=0, max_tokens=100),
    }
    return Agent(**{**given, **options})


@checks.named("run: text")
def text(service: Service) -> str:
    return told(agent_of(service, instructions="You tell stories."))


@checks.named("run: stream with usage")
def stream(service: Service) -> str:
    settings = ModelSettings(temperature=0, max_tokens=100, include_usage=True)
    _, num_tokens = asyncio.run(streamed(agent_of(service, model_settings=settings)))
    expect(num_tokens > 0, "no usage")
    return f"{num_tokens} tokens"


@checks.named("run: output_type (json_schema)")
def output_type(service: Service) -> str:
    return recorded(agent_of(service, output_type=Order))


@checks.named("run: two turns")
def two_turns(service: Service) -> str:
    async def ask() -> str:
        agent = agent_of(service)
        first = await Runner.run(agent, STORY)
        turns = [*first.to_input_list(), {"role": "user", "content": "Go on."}]
        return str((await Runner.run(agent, turns)).final_output)

    return repr(asyncio.run(ask()))


@checks.named("run: a function tool")
def tools(service: Service) -> str:
    calls: list[str] = []
    settings = ModelSettings(temperature=0, max_tokens=100, tool_choice="required")
    agent = agent_of(service, tools=[weather_tool(calls)], model_settings=settings)
    asyncio.run(Runner.run(agent, "What is the weather in Delhi?", max_turns=3))
    expect(calls, "the tool was not called")
    return str(calls)


checks.include(openai_agents_responses.checks)

if __name__ == "__main__":
    checks.main()
