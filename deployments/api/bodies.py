"""Reads the bytes of a body into a request shape; every refusal names the field.

Unknown fields are refused; OpenAI's fields that are not offered are accepted with the values that
ask for nothing (`api/schemas/requests.py`).
"""

from __future__ import annotations

import codecs
import json
from collections.abc import Mapping
from typing import Any, NoReturn, TypeVar

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from deployments.api.history.message import MAX_CALLS_OF_TURN
from deployments.api.schemas.requests import (
    FORMER_FIELDS,
    MAX_MESSAGES,
)
from deployments.api.schemas.strict_fields import MAX_FIELDS, BodyFields, shown, without_nulls
from deployments.api.schemas.tool_fields import MAX_TOOLS
from models.protocol.errors import InvalidRequest

Request = TypeVar("Request", bound=BodyFields)

_MAX_EXPLAINED_BYTES = 16_384
# Strict (UTF-8, no NaN, no lone surrogates) and several times as fast as `json`, whose decoder
# stops all other threads as long. `float` reads 1e400 as infinity, so that its field is named.
_DECODER = msgspec.json.Decoder(float_hook=float)


def parse(body: bytes, schema: type[Request]) -> Request:
    """Read a body.

    Raises:
        InvalidRequest: not JSON, an unknown or unsupported field, a wrong type, a value out of
            range; `param` is the field's path.
    """
    content = _json_object(body)
    _check_sizes(content)
    fields = _screened(content, schema)
    try:
        return schema.model_validate(fields)
    except ValidationError as error:
        raise_invalid(error)


def _json_object(body: bytes) -> dict[str, Any]:
    try:
        content = _DECODER.decode(body.removeprefix(codecs.BOM_UTF8))
    except (ValueError, RecursionError) as error:
        raise InvalidRequest(
            f"the body is not valid JSON: {_fault(body, error)}", code="invalid_json"
        ) from None
    if not isinstance(content, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    return content


def _fault(text: bytes, error: Exception) -> Exception:
    """Find the fault of a short text that was refused, by line and column; else return `error`."""
    if len(text) <= _MAX_EXPLAINED_BYTES:
        try:
            content = json.loads(text.decode("utf-8-sig"), parse_constant=_refuse_constant)
            json.dumps(content, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as found:
            return found
    return error


def _check_sizes(fields: Mapping[str, Any]) -> None:
    """Refuse what would take long to look at, before it is looked at."""
    if len(fields) > MAX_FIELDS:
        raise InvalidRequest(
            f"the body: at most {MAX_FIELDS} fields are allowed (got {len(fields)})"
        )
    messages = fields.get("messages")
    _check_number(messages, "messages", MAX_MESSAGES)
    _check_number(fields.get("tools"), "tools", MAX_TOOLS)
    for index, message in enumerate(messages if isinstance(messages, list) else ()):
        if isinstance(message, dict):
            calls = message.get("tool_calls")
            _check_number(calls, f"messages[{index}].tool_calls", MAX_CALLS_OF_TURN)


def _check_number(items: object, path: str, limit: int) -> None:
    if isinstance(items, list) and len(items) > limit:
        raise InvalidRequest(f"{path}: at most {limit} are allowed (got {len(items)})", param=path)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def _screened(fields: Mapping[str, Any], schema: type[BodyFields]) -> dict[str, Any]:
    """Return the fields for the schema.

    Fields that are null, ignored or neutral are left out.
    """
    kept: dict[str, Any] = {}
    for name, value in fields.items():
        if value is None or name in schema.ignored:
            continue
        if name in FORMER_FIELDS:
            raise InvalidRequest(
                f"{name}: is no field any more; use {FORMER_FIELDS[name]}",
                param=name,
                code="unsupported_parameter",
            )
        if name in schema.model_fields or name not in schema.neutral:
            kept[name] = value
        elif not _asks_for_nothing(name, value, fields, schema):
            raise InvalidRequest(
                f"{name}: {shown(value)} is not supported by this server",
                param=name,
                code="unsupported_parameter",
            )
    if isinstance(outputs := kept.get("structured_outputs"), dict):
        kept["structured_outputs"] = _with_schema_read(outputs)
    return kept


def _asks_for_nothing(
    name: str, value: object, fields: Mapping[str, Any], schema: type[BodyFields]
) -> bool:
    if name == "best_of" and _same(value, fields.get("n")):  # nothing is chosen from
        return True
    present = without_nulls(value)
    return any(_same(present, neutral) for neutral in schema.neutral[name])


def _same(value: object, neutral: object) -> bool:
    # 0 == False in Python, not in JSON.
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


def _with_schema_read(outputs: Mapping[str, Any]) -> dict[str, Any]:
    present = dict(outputs)
    for name in ("json", "structural_tag"):
        if not isinstance(text := present.get(name), str):
            continue
        field = f"structured_outputs.{name}"
        try:
            present[name] = _DECODER.decode(text)
        except (ValueError, RecursionError) as error:
            raise InvalidRequest(
                f"{field} is not valid JSON: {_fault(text.encode(), error)}", param=field
            ) from None
    return present


def raise_invalid(error: ValidationError) -> NoReturn:
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
