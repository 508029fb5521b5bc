"""The content of a turn: strict where somebody writes it, lenient where a client carries it back.

A text of a user or of the instructions is shown to the model whole, or refused by name. Answers and
results of tools are data. Their text, reasoning and calls are found in the shapes of all the usual
services. Other content is left out, so that no conversation ends because of it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from deployments.api.history.calls import text_at
from deployments.api.schemas.strict_fields import refuse_value

MAX_PARTS = 4096  # parts of one message's content
TEXT_PARTS = ("text", "input_text", "output_text")
_THOUGHT_PARTS = re.compile(r"thinking|reasoning|summary_text|redacted")
_CALL_PARTS = re.compile(r"tool[_-](use|call)|function_call")
_MEDIA_PARTS = re.compile(r"image|audio|video|file|document|screenshot|resource")
_MAX_NESTED = 8  # parts within parts
_SAID = ("text", "refusal", "transcript", "output_text")
_THOUGHT = ("thinking", "reasoning", "reasoning_content", "text", "content")


def written_text(content: Any, between: str = "\n", where: str = "") -> str:
    """Return the text of a string or a list of text parts, joined by `between`; refuse all else.

    Args:
        content: the content.
        between: parts.
        where: what refusals begin with.
    """
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        refuse_value(f"{where}must be a string or a non-empty list of text parts")
    check_number(content, where)
    texts = []
    for index, part in enumerate(content):
        part = {"type": "text", "text": part} if isinstance(part, str) else part
        kind = part.get("type") if isinstance(part, dict) else None
        if kind not in TEXT_PARTS:
            refuse_value(f"{where}part {index}: type {kind!r:.40} is not supported, only 'text'")
        if not isinstance(part.get("text"), str):
            refuse_value(f"{where}part {index}: text must be a string")
        texts.append(part["text"])
    return between.join(texts)


def check_number(content: Any, where: str = "") -> None:
    """Refuse a list of more parts than a message may have."""
    if isinstance(content, list) and len(content) > MAX_PARTS:
        refuse_value(f"{where}at most {MAX_PARTS} parts are allowed (got {len(content)})")


@dataclass(slots=True)
class Said:
    """The parts of an assistant's content, in order."""

    texts: list[str] = field(default_factory=list)
    thoughts: list[str] = field(default_factory=list)
    calls: list[Mapping[str, Any]] = field(default_factory=list)


def said_in(content: Any) -> Said:
    """Return the text, reasoning and calls in an assistant's turn, whatever its content is."""
    said = Said()
    for part in content if isinstance(content, list) else [content]:
        if not isinstance(part, dict):
            said.texts += [] if part is None else [as_text(part)]
            continue
        kind = str(part.get("type"))
        if _CALL_PARTS.fullmatch(kind):
            said.calls.append(part)
        elif _THOUGHT_PARTS.match(kind):
            said.thoughts.append(thought_in(part))
        elif text := text_at(part, _SAID):
            said.texts.append(text)
    return said


def thought_in(value: Any, depth: int = _MAX_NESTED) -> str:
    """Return the reasoning in a field or part: a text, parts of one, or "" if it is unreadable."""
    if isinstance(value, str):
        return value
    if isinstance(value, list) and depth:
        return "".join(thought_in(part, depth - 1) for part in value)
    if isinstance(value, dict) and depth:
        found = (thought_in(value.get(name), depth - 1) for name in _THOUGHT)
        return next(filter(None, found), "")
    return ""


def result_text(content: Any, depth: int = _MAX_NESTED) -> str:
    """Return a tool's result as text: parts line by line, other values as JSON.

    The model is told of a picture or a sound that it cannot be shown. An empty result would be a
    different one.
    """
    if content is None:
        return ""
    if depth and isinstance(content, list) and all(map(_is_part, content)):
        return "\n".join(_result_part(part, depth - 1) for part in content)
    return _result_part(content, depth) if _is_part(content) else as_text(content)


def _is_part(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, dict) and "type" in value)


def _result_part(part: Any, depth: int) -> str:
    if isinstance(part, str):
        return part
    kind = str(part["type"])
    if kind in TEXT_PARTS:
        return as_text(part.get("text") or "")
    if kind == "tool_result":
        return result_text(part.get("content"), depth - 1) if depth else ""
    if media := _MEDIA_PARTS.search(kind):
        return f"[{media[0]}: not shown]"
    return as_text(part)


def as_text(value: Any) -> str:
    """Return a value as text: a string as it is, all else as JSON."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except RecursionError:
        return "[...]"
