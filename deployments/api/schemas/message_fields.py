"""The turns of a conversation as requests have them, calls of tools and their results included."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationInfo

from deployments.api.schemas.strict_fields import StrictFields, refuse_value, shown
from deployments.api.schemas.tool_fields import FunctionName, check_depth
from models.protocol.errors import InvalidRequest

MAX_PARTS = 4096  # of one message's content
MAX_CALLS_OF_TURN = 128
_Id = Annotated[str, Field(min_length=1, max_length=256)]


def text_of_parts(content: Any, between: str) -> str:
    """Read a string or a list of text parts, which are joined by `between`; refuse all else."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        refuse_value("must be a string or a non-empty list of text parts")
    if len(content) > MAX_PARTS:
        refuse_value(f"at most {MAX_PARTS} parts are allowed (got {len(content)})")
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            refuse_value(f"part {index}: type {kind!r:.40} is not supported, only 'text'")
        if not isinstance(part.get("text"), str):
            refuse_value(f"part {index}: text must be a string")
        texts.append(part["text"])
    return between.join(texts)


def _joined_text(content: Any, info: ValidationInfo) -> str | None:
    """Content is a string or a list of text parts, which are joined by line breaks.

    A turn with calls may have none.
    """
    if content is None and info.data.get("tool_calls"):
        return None
    if content is None:
        refuse_value("is required and must be a string or a non-empty list of text parts")
    return text_of_parts(content, "\n")


def _read_arguments(text: Any) -> dict[str, Any]:
    """The arguments of a call, a JSON object as text; clients send nothing for no arguments."""
    if not isinstance(text, str):
        refuse_value("must be a string, the JSON text of an object")
    try:
        arguments = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        refuse_value(f"must be the JSON text of an object: {error}")
    if not isinstance(arguments, dict):
        refuse_value("must be the JSON text of an object")
    check_depth(arguments)
    return arguments


# What the validator above lets through, as the OpenAPI page shows it.
class TextPart(BaseModel):
    """A part of a message's content."""

    type: Literal["text"]
    text: str


_ContentIn = str | Annotated[list[TextPart], Field(min_length=1, max_length=MAX_PARTS)]


class CalledFunction(StrictFields):
    """Which function a turn called, and with what."""

    name: FunctionName
    arguments: Annotated[
        dict[str, Any], BeforeValidator(_read_arguments, json_schema_input_type=str)
    ]


class ToolCall(StrictFields):
    """A call in a turn of the assistant."""

    id: _Id
    type: Literal["function"] = "function"
    function: CalledFunction
    index: int | None = None  # some clients leave a stream's in


def _only_of(role: str) -> BeforeValidator:
    """Refuse a field with a value in turns of other roles."""

    def check(value: Any, info: ValidationInfo) -> Any:
        if value and info.data.get("role", role) != role:
            refuse_value(f"is only allowed with role {role!r} (got {info.data['role']!r})")
        return value

    return BeforeValidator(check)


def _check_answered(call_id: Any, info: ValidationInfo) -> Any:
    if call_id is None and info.data.get("role") == "tool":
        refuse_value("is required with role 'tool'")
    return call_id


def _add_rules(schema: dict[str, Any]) -> None:
    """Rules between fields, for the OpenAPI page."""
    with_text = {"required": ["content"], "properties": {"content": {"not": {"type": "null"}}}}
    calls = {"type": "array", "minItems": 1}
    with_calls = {"required": ["tool_calls"], "properties": {"tool_calls": calls}}
    is_result = {"properties": {"role": {"const": "tool"}}}
    answers = {"required": ["tool_call_id"], "properties": {"tool_call_id": {"type": "string"}}}
    schema |= {"anyOf": [with_text, with_calls], "if": is_result, "then": answers}


class Message(StrictFields):
    """One turn. `developer` is today's word for `system`; `tool` is the result of a call."""

    model_config = ConfigDict(json_schema_extra=_add_rules)

    role: Literal["system", "developer", "user", "assistant", "tool"]
    tool_calls: Annotated[list[ToolCall], _only_of("assistant")] = Field(
        default_factory=list, max_length=MAX_CALLS_OF_TURN
    )
    content: Annotated[
        str | None, BeforeValidator(_joined_text, json_schema_input_type=_ContentIn | None)
    ] = Field(default=None, validate_default=True)
    name: str | None = None
    tool_call_id: Annotated[_Id | None, _only_of("tool"), BeforeValidator(_check_answered)] = Field(
        default=None, validate_default=True
    )
    reasoning_content: Annotated[str | None, _only_of("assistant")] = None

    def as_turn(self) -> dict[str, Any]:
        """The message as chat templates read it."""
        turn: dict[str, Any] = {
            "role": "system" if self.role == "developer" else self.role,
            "content": self.content,
        }
        if self.tool_calls:
            turn["content"] = self.content or None  # by which some templates know a turn with calls
            turn["tool_calls"] = [
                {"id": call.id, "type": "function", "function": call.function.model_dump()}
                for call in self.tool_calls
            ]
        for name in ("name", "tool_call_id", "reasoning_content"):
            value = getattr(self, name)
            if value is not None:
                turn[name] = value
        return turn


def check_results(messages: Sequence[Message]) -> None:
    """Check that every result is that of a call before it.

    Raises:
        InvalidRequest: one is not.
    """
    ids: set[str] = set()
    for index, message in enumerate(messages):
        ids.update(call.id for call in message.tool_calls)
        if message.tool_call_id is not None and message.tool_call_id not in ids:
            field = f"messages[{index}].tool_call_id"
            raise InvalidRequest(
                f"{field}: no call before has the id {shown(message.tool_call_id)}", param=field
            )
