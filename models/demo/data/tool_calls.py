"""Conversations with functions to call: calls, several at once, results put into words.

Turns have the form in which the service asks a model without a tool format of its own
(`models.text.tools.prompt`). So the training form is the served form. Knows nothing about tokens.
"""

import random
from typing import Any

from models.demo.data.chat import Conversation
from models.demo.data.tool_kinds import KINDS
from models.demo.data.tools import Tool, Values, draw_tools
from models.demo.data.words import Pools
from models.text.tools.prompt import TurnFormats

_FORMATS = TurnFormats()
_SYSTEMS = ("You are a helpful assistant.", "Use the functions.", "Be brief.")
_JOINED = ("{} {}", "{} And: {}", "{}\n{}")


def with_tools(tools: list[Tool], messages: list[dict[str, Any]]) -> Conversation:
    """Return the turns that a model is given of `messages`, whose last one is its answer."""
    functions = [{"type": "function", "function": tool.function} for tool in tools]
    turns, _ = _FORMATS.prompted(messages, functions)
    return Conversation(tuple((turn["role"], turn["content"]) for turn in turns))


def _call(tool: Tool, values: Values, call_id: str) -> dict[str, Any]:
    function = {"name": tool.name, "arguments": tool.arguments(values)}
    return {"id": call_id, "type": "function", "function": function}


def _asked(rng: random.Random, tool: Tool, pools: Pools) -> tuple[str, Values]:
    values = tool.kind.draw(rng, pools)
    if "unit" not in tool.keys:
        values.pop("unit", None)
    text = rng.choice(tool.kind.requests).format(**values)
    if "unit" in values:
        text = f"{text[:-1]} in {values['unit']}{text[-1]}"
    return text, values


def make_tool_call(rng: random.Random, pools: Pools) -> Conversation:
    """Return a conversation that ends with one or two calls, or with what their results say."""
    tools = draw_tools(rng, pools, KINDS)
    tool = rng.choice(tools)
    asked = [(tool, *_asked(rng, tool, pools))]
    if rng.random() < 0.15:
        other = rng.choice(tools)
        asked.append((other, *_asked(rng, other, pools)))
    text = asked[0][1] if len(asked) == 1 else rng.choice(_JOINED).format(*(a[1] for a in asked))
    messages: list[dict[str, Any]] = []
    if rng.random() < 0.2:
        messages.append({"role": "system", "content": rng.choice(_SYSTEMS)})
    messages.append({"role": "user", "content": text})
    calls = [_call(tool, values, f"call_{n}") for n, (tool, _, values) in enumerate(asked)]
    messages.append({"role": "assistant", "content": "", "tool_calls": calls})
    if rng.random() < 0.3:
        said = []
        for number, (tool, _, values) in enumerate(asked):
            result, answer = rng.choice(tool.kind.results)
            content = result.format(**values)
            messages.append({"role": "tool", "tool_call_id": f"call_{number}", "content": content})
            said.append(answer.format(**values))
        messages.append({"role": "assistant", "content": " ".join(said)})
    return with_tools(tools, messages)


def make_unneeded_tools(rng: random.Random, pools: Pools, chat: Conversation) -> Conversation:
    """Return `chat` with functions that it does not need."""
    messages: list[dict[str, Any]] = [
        {"role": role, "content": content} for role, content in chat.turns
    ]
    return with_tools(draw_tools(rng, pools, KINDS), messages)
