"""Calls that a client carries back: read in every usual shape, never refused.

Arguments that are no JSON object (cut by `max_tokens`, empty, a list) count as none. Templates and
models want an object, and the turn still tells that the function was called.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict

from deployments.api.schemas.tool_fields import is_deep

_NAMES = ("name", "toolName", "tool_name")
_IDS = ("id", "call_id", "tool_call_id", "tool_use_id", "toolCallId")
_ARGUMENTS = ("arguments", "args", "input", "parameters", "action", "operation")
_UNNAMED = "unknown"


class CarriedCall(BaseModel):
    """A call in a turn of the assistant; `id` None: the client has lost it."""

    model_config = ConfigDict(frozen=True)

    id: str | None
    name: str
    arguments: dict[str, Any]


def read_call(raw: Any, name: str = _UNNAMED) -> CarriedCall | None:
    """Read a call in the form of OpenAI, Anthropic or others; None if nothing is called.

    Args:
        raw: the call.
        name: of the function, where the call has none.
    """
    if not isinstance(raw, Mapping):
        return None
    inner = next((raw[k] for k in ("function", "custom") if isinstance(raw.get(k), Mapping)), raw)
    found = text_at(inner, _NAMES) or text_at(raw, _NAMES)
    arguments = next((inner[k] for k in _ARGUMENTS if inner.get(k) is not None), None)
    if not found and arguments is None and name is _UNNAMED:
        return None
    is_free = str(raw.get("type")).startswith("custom")
    return CarriedCall(
        id=id_of(raw),
        name=found or name,
        arguments=read_arguments({"input": arguments} if is_free else arguments),
    )


def id_of(raw: Mapping[str, Any]) -> str | None:
    """Return the id of a call, or of the call that a result belongs to; None if there is none."""
    # An item of a response has an id of its own beside that of the call.
    names = ("call_id", *_IDS) if "call_id" in raw else _IDS
    ids = (raw.get(name) for name in names)
    return next((str(one) for one in ids if isinstance(one, str | int) and one != ""), None)


def text_at(raw: Mapping[str, Any], names: tuple[str, ...]) -> str:
    """Return the first text that is not empty under one of the names; "" if there is none."""
    texts = (raw.get(name) for name in names)
    return next((text for text in texts if isinstance(text, str) and text), "")


def read_arguments(value: Any) -> dict[str, Any]:
    """Read the arguments of a call: an object, or its JSON text; none if it is neither."""
    if isinstance(value, str):
        try:
            value = json.loads(value, strict=False)
        except (ValueError, RecursionError):
            return {}
    if not isinstance(value, dict) or is_deep(value):
        return {}
    return _without_surrogates(value)


def _without_surrogates(arguments: dict[str, Any]) -> dict[str, Any]:
    """Half of a character, which JSON text can escape but no prompt can hold, becomes `?`."""
    text = json.dumps(arguments, ensure_ascii=False)
    try:
        text.encode()
    except UnicodeEncodeError:
        read: dict[str, Any] = json.loads(text.encode(errors="replace"))
        return read
    return arguments
