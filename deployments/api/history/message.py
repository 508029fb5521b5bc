"""The turns of a conversation as requests have them, calls of tools and their results included.

A turn's fields are data, not wishes: one that its role does not have says nothing and is left out.
Only the role, and what a user or the instructions say, can be wrong.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationInfo,
    WithJsonSchema,
    model_validator,
)

from deployments.api.history.calls import CarriedCall, id_of, read_call
from deployments.api.history.content import (
    MAX_PARTS,
    TEXT_PARTS,
    check_number,
    result_text,
    said_in,
    thought_in,
    written_text,
)
from deployments.api.schemas.strict_fields import (
    MAX_FIELDS,
    StrictFields,
    at_most,
    check_number_of_fields,
    refuse_value,
)

# Far more turns than conversations have; to check and to render as many takes about 20 ms.
MAX_MESSAGES = 4096
MAX_CALLS_OF_TURN = 128
ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_RESULTS = ("tool", "function")
_REASONING = ("reasoning_content", "reasoning", "thinking", "thinking_blocks", "reasoning_details")


class CarriedResult(BaseModel):
    """A tool's result in a turn of the user."""

    model_config = ConfigDict(frozen=True)

    call_id: str | None
    text: str


# A field as it was sent: it is read where a refusal names the field.
_Unread = Callable[[], Any]


def _carried(content: Any, text: str | None) -> str | None:
    """Return the text that was read of some content; refuse too long a list."""
    check_number(content)
    return text


def _calls(listed: Any, others: Sequence[Any] | None = None) -> tuple[CarriedCall, ...]:
    """Return the distinct calls of a turn; refuse too long a list.

    A call that stands in the content too is one call.

    Args:
        listed: the turn's own list.
        others: calls that stand elsewhere in it; None: its role has none.
    """
    raw_calls = listed if isinstance(listed, list) else []
    if len(raw_calls) > MAX_CALLS_OF_TURN:
        refuse_value(f"at most {MAX_CALLS_OF_TURN} are allowed (got {len(raw_calls)})")
    if others is None:
        return ()
    calls: dict[object, CarriedCall] = {}
    for index, raw in enumerate([*raw_calls, *others]):
        call = read_call(raw)
        if call is not None:
            calls.setdefault(index if call.id is None else call.id, call)
    return tuple(calls.values())


def _content(unread: _Unread | None, info: ValidationInfo) -> str | None:
    if unread is not None:
        text: str | None = unread()
        return text
    if "role" in info.data:  # else that is what is wrong
        refuse_value("is required and must be a string or a non-empty list of text parts")
    return None


_PART = {
    "anyOf": [
        {"type": "string"},
        {
            "type": "object",
            "required": ["type", "text"],
            "properties": {"type": {"enum": list(TEXT_PARTS)}, "text": {"type": "string"}},
        },
        {
            "type": "object",
            "required": ["type"],
            "properties": {"type": {"const": "tool_result"}},
        },
    ]
}
_WRITTEN_CONTENT = {
    "anyOf": [
        {"type": "string"},
        {"type": "array", "items": _PART, "minItems": 1, "maxItems": MAX_PARTS},
    ]
}


def _as_read(schema: dict[str, Any]) -> None:
    """Describe a turn for the page of routes: only what the server requires of it."""
    written = {"properties": {"role": {"enum": ["system", "developer", "user"]}}}
    schema["properties"] = {
        "role": {"enum": list(ROLES)},
        "content": {
            "description": "Text or text parts; of assistants and tools anything, null included.",
            "if": {"type": "array"},
            "then": {"maxItems": MAX_PARTS},
        },
        "tool_calls": {
            "description": "Calls of a turn of the assistant; arguments may be cut or empty.",
            "if": {"type": "array"},
            "then": {"maxItems": MAX_CALLS_OF_TURN},
        },
        "tool_call_id": {"description": "The call that a turn with role tool answers."},
        "reasoning_content": {
            "description": "Reasoning of a turn of the assistant; also as reasoning, thinking, "
            "thinking_blocks or reasoning_details."
        },
        "name": {"description": "For the template."},
    }
    schema |= {
        "required": ["role"],
        "additionalProperties": True,
        "maxProperties": MAX_FIELDS,
        "if": written,
        "then": {"required": ["content"], "properties": {"content": _WRITTEN_CONTENT}},
    }


class Message(StrictFields):
    """One turn. `developer` is today's word for `system`; `tool` is the result of a call, and
    `function` its former word."""

    model_config = ConfigDict(json_schema_extra=_as_read)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    content: Annotated[str | None, BeforeValidator(_content), WithJsonSchema({})] = Field(
        default=None, validate_default=True
    )
    name: str | None = None
    tool_calls: Annotated[
        tuple[CarriedCall, ...], BeforeValidator(lambda unread: unread()), WithJsonSchema({})
    ] = ()
    tool_call_id: str | None = None
    reasoning_content: str | None = None
    # Results in front of a user's text, in Anthropic's form.
    results: Annotated[tuple[CarriedResult, ...], WithJsonSchema({})] = ()

    @model_validator(mode="before")
    @classmethod
    def _read(cls, raw: Any) -> Any:
        """Take from a turn what it says, in whatever shape its client carries it."""
        if not isinstance(raw, dict):
            return raw
        check_number_of_fields(raw)
        role = raw.get("role")
        fields = {"role": role, "tool_calls": partial(_calls, raw.get("tool_calls"))}
        if _has_name(raw):
            fields["name"] = raw["name"]
        if role == "assistant":
            return fields | _of_assistant(raw)
        if role in _RESULTS:
            text = result_text(raw.get("content"))
            content = partial(_carried, raw.get("content"), text)
            return fields | {"tool_call_id": _answered(raw), "content": content}
        return fields | _of_writer(raw)


def _has_name(raw: dict[str, Any]) -> bool:
    return isinstance(raw.get("name"), str) and bool(raw["name"])


def _answered(raw: dict[str, Any]) -> str | None:
    named = {name: value for name, value in raw.items() if name != "id"}  # the turn's own
    return id_of(named)


def _of_writer(raw: dict[str, Any]) -> dict[str, Any]:
    """Return the text of a turn that a person writes, and the results of tools within it."""
    content = raw.get("content")
    if content is None:
        return {}
    if not isinstance(content, list) or len(content) > MAX_PARTS:
        return {"content": partial(written_text, content)}
    results = [part for part in content if _is_result(part)]
    if not results:
        return {"content": partial(written_text, content)}
    rest = [part for part in content if not _is_result(part)]
    return {
        "results": tuple(
            CarriedResult(call_id=_answered(part), text=result_text(part.get("content")))
            for part in results
        ),
        "content": partial(written_text, rest) if rest else partial(_carried, content, None),
    }


def _is_result(part: Any) -> bool:
    return isinstance(part, dict) and part.get("type") == "tool_result"


def _of_assistant(raw: dict[str, Any]) -> dict[str, Any]:
    content = raw.get("content")
    said = said_in(content if not isinstance(content, list) else content[:MAX_PARTS])
    text = "\n".join(said.texts)
    for name in ("refusal", "audio"):  # OpenAI's answers have these in place of a text
        other = raw.get(name)
        text = text or "\n".join(said_in(other).texts)
    thoughts = (thought_in(raw.get(name)) for name in _REASONING)
    thought = next(filter(None, thoughts), "") or "".join(said.thoughts)
    others = [raw.get("function_call"), *said.calls]
    return {
        "content": partial(_carried, content, text),
        "tool_calls": partial(_calls, raw.get("tool_calls"), others),
        "reasoning_content": thought or None,
    }


Messages = Annotated[
    list[Message],
    Field(min_length=1, max_length=MAX_MESSAGES, fail_fast=True),
    at_most(MAX_MESSAGES),
]
