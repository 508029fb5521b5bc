"""Reads the bytes of a body into a request shape; every refusal names the field.

Unknown fields are refused; OpenAI's fields that are not offered are accepted with the values that
ask for nothing (`openai.py`).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from deployments.api.openai import (
    FORMER_FIELDS,
    IGNORED_FIELDS,
    NEUTRAL_VALUES,
    GenerationFields,
)
from models.errors import InvalidRequest

Request = TypeVar("Request", bound=GenerationFields)

_MAX_SHOWN = 80  # characters of a refused value that the message repeats
_UNSERVED_CONSTRAINTS = ("grammar", "structural_tag")


def parse(body: bytes, schema: type[Request]) -> Request:
    """Read a body.

    Raises:
        InvalidRequest: not JSON, an unknown or unsupported field, a wrong type, a value out of
            range; `param` is the field's path.
    """
    fields = _screened(_json_object(body), schema)
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        _raise_invalid(error)


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        # Decoded here and strictly: `json.loads` guesses UTF-16 and 32 and lets surrogates pass.
        text = body.decode("utf-8-sig")
        content = json.loads(text, parse_constant=_refuse_constant)
        # Lone surrogates (JSON can spell them) are no text: nothing behind here can encode them.
        if "\\ud" in text.lower():
            json.dumps(content, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(f"the body is not valid JSON: {error}", code="invalid_json") from None
    if not isinstance(content, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    return content


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _screened(fields: Mapping[str, Any], schema: type[GenerationFields]) -> dict[str, Any]:
    """The fields the schema is to see: no nulls, nothing ignored, nothing neutral."""
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None or name in IGNORED_FIELDS:
            continue
        if name in FORMER_FIELDS:
            raise InvalidRequest(
                f"{name}: is no field any more; use {FORMER_FIELDS[name]}",
                param=name,
                code="unsupported_parameter",
            )
        if name in schema.model_fields or name not in NEUTRAL_VALUES:
            kept[name] = value
        elif not any(_same(value, neutral) for neutral in NEUTRAL_VALUES[name]):
            raise InvalidRequest(
                f"{name}: {shown(value)} is not supported by this server",
                param=name,
                code="unsupported_parameter",
            )
    if isinstance(messages := kept.get("messages"), list):
        kept["messages"] = [_without_empty(item) for item in messages]
    for name in ("stream_options", "speculation", "response_format"):
        if isinstance(options := kept.get(name), dict):
            kept[name] = {key: value for key, value in options.items() if value is not None}
    if isinstance(outputs := kept.get("structured_outputs"), dict):
        kept["structured_outputs"] = _with_schema_read(outputs)
    return kept


def _same(value: object, neutral: object) -> bool:
    # 0 == False in Python, not in JSON.
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _without_empty(message: Any) -> Any:
    """Clients send back an answer's message with its empty fields (`tool_calls: null`)."""
    if not isinstance(message, dict):
        return message
    return {
        name: value
        for name, value in message.items()
        if name in ("role", "content") or (value is not None and value != [])
    }


def _with_schema_read(outputs: Mapping[str, Any]) -> dict[str, Any]:
    present = {name: value for name, value in outputs.items() if value is not None}
    for name in _UNSERVED_CONSTRAINTS:
        if name in present:
            raise InvalidRequest(
                f"structured_outputs.{name} is not supported",
                param=f"structured_outputs.{name}",
                code="unsupported_parameter",
            )
    if isinstance(text := present.get("json"), str):
        try:
            present["json"] = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(
                f"structured_outputs.json is not valid JSON: {error}",
                param="structured_outputs.json",
            ) from None
    return present


def _raise_invalid(error: ValidationError) -> NoReturn:
    """Several faults make one message; the first names the `param`."""
    faults = error.errors(include_url=False)
    shown = [_describe(fault) for fault in faults[:3]]
    if len(faults) > len(shown):
        shown.append(f"and {len(faults) - len(shown)} more")
    raise InvalidRequest("; ".join(shown), param=_path(faults[0])) from None


def _describe(fault: ErrorDetails) -> str:
    path = _path(fault)
    match fault["type"]:
        case "extra_forbidden":
            return f"{path}: unknown field"
        case "missing":
            return f"{path}: is required"
        case "refused":
            return f"{path}: {fault['msg']}"
    reason = fault["msg"].replace("Input should be", "must be")
    return f"{path}: {reason} (got {shown(fault['input'])})"


def _path(fault: ErrorDetails) -> str:
    path = ""
    for part in fault["loc"]:
        path += f"[{part}]" if isinstance(part, int) else f".{part}"
    return path.removeprefix(".")


def shown(value: object) -> str:
    """A refused value as JSON, cut to a length that fits in a message."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=str)
    except RecursionError:
        text = "a value nested too deeply"
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
