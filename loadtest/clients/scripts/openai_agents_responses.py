"""openai-agents over its default, the Responses API, with the settings that its users set."""

from __future__ import annotations

import asyncio
from typing import Any

from agents import Agent, ModelSettings, OpenAIResponsesModel, Runner, function_tool
from openai import AsyncOpenAI
from openai.types.responses import ResponseTextDeltaEvent
from openai.types.shared import Reasoning

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

# It takes a response that max_tokens cuts off for an error, OpenAI's own as well.
MAX_TOKENS = 600
ENCRYPTED: Any = ["reasoning.encrypted_content"]
# Settings that users write, and the framework's value for one that is left out.
REASONING: dict[str, ModelSettings] = {
    "an empty reasoning": ModelSettings(reasoning=Reasoning()),
    "effort and summary of None": ModelSettings(reasoning=Reasoning(effort=None, summary=None)),
    "effort none": ModelSettings(reasoning=Reasoning(effort="none")),
    "encrypted content": ModelSettings(response_include=ENCRYPTED, store=False),
    "both": ModelSettings(
        reasoning=Reasoning(effort=None), response_include=ENCRYPTED, store=False, verbosity=None
    ),
    "metadata and truncation": ModelSettings(
        metadata={"team": "a"}, truncation="auto", parallel_tool_calls=False
    ),
    "no logprobs": ModelSettings(top_logprobs=0),
}


def client_of(service: Service) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=service.base_url, api_key="none", timeout=TIMEOUT_S, max_retries=0)


def agent_of(service: Service, settings: ModelSettings | None = None, **options: Any) -> Agent[Any]:
    base = ModelSettings(temperature=0, max_tokens=MAX_TOKENS)
    return Agent(
        name="assistant",
        model=OpenAIResponsesModel(model=service.model, openai_client=client_of(service)),
        model_settings=base.resolve(settings),
        **options,
    )


def told(agent: Agent[Any]) -> str:
    answer = asyncio.run(Runner.run(agent, STORY))
    expect(answer.final_output, "no text")
    return repr(answer.final_output)


async def streamed(agent: Agent[Any]) -> tuple[str, int]:
    """Return the text of a stream, which its end must have too, and the tokens of its usage."""
    run, found = Runner.run_streamed(agent, STORY), ""
    async for event in run.stream_events():
        if event.type == "raw_response_event" and isinstance(event.data, ResponseTextDeltaEvent):
            found += event.data.delta
    final = str(run.final_output)
    expect(found and found == final, f"the stream said {found!r}, its end {final!r}")
    return final, run.context_wrapper.usage.output_tokens


def recorded(agent: Agent[Any]) -> str:
    answer = asyncio.run(Runner.run(agent, ORDER))
    return expect_order(answer.final_output.model_dump())


def weather_tool(calls: list[str]) -> Any:
    """Return a tool that notes the cities that it is called with."""

    @function_tool
    def weather(city: str) -> str:
        """The weather in a city."""
        calls.append(city)
        return "sunny"

    return weather


@checks.named("responses: text")
def text(service: Service) -> str:
    return told(agent_of(service, instructions="You tell stories."))


@checks.named("responses: reasoning settings that ask for nothing")
def reasoning(service: Service) -> str:
    wrong = []
    for name, settings in REASONING.items():
        try:
            asyncio.run(Runner.run(agent_of(service, settings), STORY))
        except Exception as error:  # noqa: BLE001 - whatever the client raises is a finding
            wrong.append(f"{name}: {error}")
    expect(not wrong, "; ".join(wrong))
    return ", ".join(REASONING)


@checks.named("responses: stream")
def stream(service: Service) -> str:
    return repr(asyncio.run(streamed(agent_of(service)))[0])


@checks.named("responses: output_type (json_schema)")
def output_type(service: Service) -> str:
    return recorded(agent_of(service, output_type=Order))


@checks.named("responses: tool calls carried back over three turns")
def carried(service: Service) -> str:
    calls: list[str] = []
    weather = weather_tool(calls)

    async def ask() -> int:
        settings = ModelSettings(
            tool_choice="required", reasoning=Reasoning(effort=None), response_include=ENCRYPTED
        )
        agent = agent_of(service, settings, tools=[weather])
        first = await Runner.run(agent, "What is the weather in Delhi?", max_turns=3)
        turns: Any = [*first.to_input_list(), {"role": "user", "content": "And in Rome?"}]
        second = await Runner.run(agent, turns, max_turns=3)
        turns = [*second.to_input_list(), {"role": "user", "content": "Thank you."}]
        talk = agent_of(service, ModelSettings(tool_choice="none"), tools=[weather])
        third = await Runner.run(talk, turns, max_turns=3)
        return len(third.to_input_list())

    num_items = asyncio.run(ask())
    expect(len(calls) >= 2, f"calls {calls}")
    return f"{len(calls)} calls, {num_items} items"


@checks.named("responses: a hand-off to another agent")
def handoff(service: Service) -> str:
    other = agent_of(service, handoff_description="tells stories")
    settings = ModelSettings(tool_choice="required", parallel_tool_calls=False)
    first = agent_of(service, settings, handoffs=[other])
    answer = asyncio.run(Runner.run(first, STORY, max_turns=3))
    expect(answer.last_agent is other, "no hand-off")
    return repr(answer.final_output)
