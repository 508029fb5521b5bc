"""Prepares a conversation with tools for a template, and the formats of one model's turns.

A template that knows tools gets them and the calls as OpenAI has them, with arguments as objects.
If a template does not know tools, the first system message describes them. Calls are written as the
model writes them, and their results are turns of the user.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from models.text.chat_template import ChatTemplates
from models.text.tools.formats import PLAIN_JSON, named_layout
from models.text.tools.layout import ToolLayout
from models.text.tools.reasoning import ReasoningLayout, named_reasoning

Turns = list[dict[str, Any]]
Tools = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TurnFormats:
    """The turn formats of one model; `is_described`: its template does not know tools."""

    layout: ToolLayout = PLAIN_JSON
    reasoning: ReasoningLayout | None = None
    is_described: bool = True

    def prompted(self, messages: Turns, tools: Tools) -> tuple[Turns, Tools]:
        """Return the messages and tools that the model's template is given."""
        named = _with_names(messages)
        if not self.is_described:
            taken = _with_taken_ids(named, self.layout)
            return taken if self.layout.is_parallel else _one_by_one(taken), tools
        return _described(named, tools, self.layout), ()


def turn_formats(
    templates: ChatTemplates, tool_call_parser: str, reasoning_parser: str
) -> TurnFormats:
    """Return the formats that a config names, or that a checkpoint's templates show.

    Args:
        templates: of the checkpoint.
        tool_call_parser: a name of `formats.LAYOUTS` or `auto`.
        reasoning_parser: a name of `reasoning.REASONING`, `auto` or `none`.

    Raises:
        ValueError: there is no format of a name.
    """
    layout = named_layout(tool_call_parser, templates.source)
    return TurnFormats(
        layout=layout,
        reasoning=named_reasoning(reasoning_parser, templates.source),
        is_described=layout is PLAIN_JSON or not templates.takes_tools,
    )


def _with_names(messages: Turns) -> Turns:
    """Add the function's name to every result, which some templates need."""
    names: dict[str, str] = {}  # by the ids of calls
    turns: Turns = []
    for message in messages:
        for call in message.get("tool_calls", ()):
            names[call["id"]] = call["function"]["name"]
        if message["role"] == "tool":
            call_id = message["tool_call_id"]
            turns.append({"name": names.get(call_id, call_id), **message})
        else:
            turns.append(message)
    return turns


def _with_taken_ids(messages: Turns, layout: ToolLayout) -> Turns:
    """Replace ids that the template refuses: calls may come from another service."""
    if not layout.has_strict_ids:
        return messages
    turns: Turns = []
    for message in messages:
        turn = dict(message)
        if "tool_calls" in turn:
            calls = turn["tool_calls"]
            turn["tool_calls"] = [{**call, "id": layout.taken_id(call["id"])} for call in calls]
        if "tool_call_id" in turn:
            turn["tool_call_id"] = layout.taken_id(turn["tool_call_id"])
        turns.append(turn)
    return turns


def _one_by_one(messages: Turns) -> Turns:
    """Put one call in a turn, each before its result, for templates that refuse more."""
    turns: Turns = []
    waiting: dict[str, Mapping[str, Any]] = {}  # further calls of the last turn, by id
    for message in messages:
        if message["role"] == "tool":
            call = waiting.pop(message["tool_call_id"], None)
            if call is not None:
                turns.append({"role": "assistant", "content": None, "tool_calls": [call]})
            turns.append(message)
            continue
        turns += _alone(waiting)
        waiting = {}
        calls = message.get("tool_calls", ())
        if len(calls) < 2:
            turns.append(message)
            continue
        turns.append({**message, "tool_calls": calls[:1]})
        waiting = {call["id"]: call for call in calls[1:]}
    return [*turns, *_alone(waiting)]


def _alone(calls: Mapping[str, Mapping[str, Any]]) -> Turns:
    """Turns of calls that have no result."""
    return [{"role": "assistant", "content": None, "tool_calls": [call]} for call in calls.values()]


def _described(messages: Turns, tools: Tools, layout: ToolLayout) -> Turns:
    turns: Turns = []
    is_after_result = False
    if tools:
        leading = list(takewhile(lambda message: message["role"] == "system", messages))
        said = [*(message["content"] for message in leading), _description(tools, layout)]
        turns.append({"role": "system", "content": "\n\n".join(said)})
        messages = messages[len(leading) :]
    for message in messages:
        if message.get("tool_calls"):
            turns.append(_written(message, layout))
        elif message["role"] == "tool":
            result = f"{message['name']} returned: {message['content']}"
            # One turn for all results of a turn's calls: many templates want users to alternate.
            if is_after_result:
                turns[-1]["content"] += f"\n{result}"
            else:
                turns.append({"role": "user", "content": result})
        else:
            turns.append(message)
        is_after_result = message["role"] == "tool"
    return turns


def _description(tools: Tools, layout: ToolLayout) -> str:
    listed = "\n".join(json.dumps(tool["function"], ensure_ascii=False) for tool in tools)
    form = layout.written([("NAME", "{...}")])
    return f"You can call these functions:\n{listed}\nTo call one, write:\n{form}"


def _written(message: Mapping[str, Any], layout: ToolLayout) -> dict[str, Any]:
    calls = [
        (call["function"]["name"], json.dumps(call["function"]["arguments"], ensure_ascii=False))
        for call in message["tool_calls"]
    ]
    lines = [message["content"], layout.written(calls)]
    return {"role": "assistant", "content": "\n".join(line for line in lines if line)}
