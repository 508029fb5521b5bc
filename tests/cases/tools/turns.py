"""Turns with calls in every format: what they may hold, their text, and what is in it."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace

from models.text.tools.formats import LAYOUTS, MISTRAL_ARGS, MISTRAL_SPACED
from models.text.tools.layout import ToolLayout
from models.text.tools.reasoning import REASONING, ReasoningStart
from models.text.tools.turn import CallableTool, Turn

ALL_LAYOUTS = [*LAYOUTS.values(), MISTRAL_SPACED, MISTRAL_ARGS]
LAYOUT_IDS = [*LAYOUTS, "mistral, spaced", "mistral, args"]

WEATHER = {
    "type": "object",
    "properties": {"city": {"$ref": "#/$defs/city"}, "days": {"type": "integer"}},
    "required": ["city"],
    "additionalProperties": False,
    "$defs": {"city": {"type": "string"}},
}
NOTE = {"type": "object", "properties": {"text": {"type": "string"}}, "required": ["text"]}
TOOLS = (
    CallableTool(name="get", schema=json.dumps(NOTE)),
    CallableTool(name="get_weather", schema=json.dumps(WEATHER)),
)
# Names of which one begins the other; strings with all that ends something else.
CALLS = [
    ("get_weather", '{"city": "Bad \\"Ems\\"}}", "days": 3}'),
    ("get", '{"text": "[{\\\\", "more": [{"a": "}"}, "</tool_call>"]}'),
    ("get_weather", '{"city": "Ö 雨"}'),
]
THOUGHT = 'I could call <tool_call> or [TOOL_CALLS] now.\n{"name": "get'


@dataclass(frozen=True)
class TurnCase:
    """A turn's text and what is in it."""

    turn: Turn
    text: str
    said: str
    thought: str
    calls: list[tuple[str, str]]


def turn_of(layout: ToolLayout, *, must_call: bool = False, start: ReasoningStart = "none") -> Turn:
    return Turn(
        layout=layout,
        tools=TOOLS,
        must_call=must_call,
        max_calls=3 if layout.is_parallel else 1,
        reasoning=REASONING["qwen3"],
        reasoning_start=start,
    )


def cases_of(layout: ToolLayout) -> list[TurnCase]:
    """Turns of one format: with and without text, reasoning and calls."""
    calls = CALLS if layout.is_parallel else CALLS[:1]
    written = layout.written(calls)
    said = "Let me look.\nIt {may} take <tool a while, [TOOL too."
    found = []
    for start, block in (
        ("none", ""),
        ("open", f"{THOUGHT}</think>\n"),
        ("optional", f"<think>\n{THOUGHT}\n</think>\n\n"),
        ("optional", ""),
    ):
        thought = THOUGHT if block else ""
        free = turn_of(layout, start=start)  # type: ignore[arg-type]  # a word of the type
        must = replace(free, must_call=True)
        found += [
            TurnCase(free, f"{block}{said}\n\n{written}", said, thought, calls),
            TurnCase(free, f"{block}{written}", "", thought, calls),
            TurnCase(free, f"{block}{said}", said, thought, []),
            TurnCase(must, f"{block}{written}", "", thought, calls),
        ]
    return found
