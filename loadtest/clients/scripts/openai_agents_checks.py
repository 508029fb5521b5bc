"""openai-agents over chat completions, as its documentation says for servers of others, and over
Responses, its default."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import (
    Agent,
    ModelSettings,
    OpenAIChatCompletionsModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai.types.responses import ResponseTextDeltaEvent

from loadtest.clients.scripts import openai_agents_responses
from loadtest.clients.scripts.checks import ORDER, STORY, Checks, Service, expect, expect_order
from loadtest.clients.scripts.order import Order

checks = Checks()
set_tracing_disabled(True)


def agent_of(service: Service, **options: Any) -> Agent[None]:
    model = OpenAIChatCompletionsModel(
        model=service.model, openai_client=openai_agents_responses.client_of(service)
    )
    given = {
        "name": "assistant",
        "model": model,
        "model_settings": ModelSettings(temperature=0, max_tokens=100),
    }
    return Agent(**{**given, **options})


@checks.named("run: text")
def text(service: Service) -> str:
    agent = agent_of(service, instructions="You tell stories.")
    answer = asyncio.run(Runner.run(agent, STORY))
    expect(answer.final_output, "no text")
    return repr(answer.final_output)


@checks.named("run: stream with usage")
def stream(service: Service) -> str:
    async def ask() -> tuple[str, str, int]:
        settings = ModelSettings(temperature=0, max_tokens=100, include_usage=True)
        run = Runner.run_streamed(agent_of(service, model_settings=settings), STORY)
        text = ""
        async for event in run.stream_events():
            if event.type == "raw_response_event" and isinstance(
                event.data, ResponseTextDeltaEvent
            ):
                text += event.data.delta
        return text, str(run.final_output), run.context_wrapper.usage.output_tokens

    text, final, num_tokens = asyncio.run(ask())
    expect(text and text == final, f"the stream said {text!r}, its end {final!r}")
    expect(num_tokens > 0, "no usage")
    return f"{num_tokens} tokens"


@checks.named("run: output_type (json_schema)")
def output_type(service: Service) -> str:
    answer = asyncio.run(Runner.run(agent_of(service, output_type=Order), ORDER))
    return expect_order(answer.final_output.model_dump())


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

    @function_tool
    def weather(city: str) -> str:
        """The weather in a city."""
        calls.append(city)
        return "sunny"

    settings = ModelSettings(temperature=0, max_tokens=100, tool_choice="required")
    agent = agent_of(service, tools=[weather], model_settings=settings)
    asyncio.run(Runner.run(agent, "What is the weather in Delhi?", max_turns=3))
    expect(calls, "the tool was not called")
    return str(calls)


checks.include(openai_agents_responses.checks)

if __name__ == "__main__":
    checks.main()
