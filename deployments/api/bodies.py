"""Reads the bytes of a body into a request shape; every refusal names the field.

The shapes look at the fields themselves, once (`api/schemas/strict_fields.py`).
"""

from __future__ import annotations

import codecs
import json
from typing import Any, NoReturn, TypeVar

import msgspec
from pydantic import ValidationError
from pydantic_core import ErrorDetails

from deployments.api.schemas.strict_fields import BodyFields, shown
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
    try:
        content = read_json(body.removeprefix(codecs.BOM_UTF8))
    except ValueError as fault:
        raise InvalidRequest(f"the body is not valid JSON: {fault}", code="invalid_json") from None
    if not isinstance(content, dict):
        raise InvalidRequest("the body must be a JSON object", code="invalid_json")
    try:
        return schema.model_validate(content)
    except ValidationError as error:
        raise_invalid(error)


def read_json(text: bytes) -> Any:
    """Return a JSON value.

    Raises:
        ValueError: it is none; a short text's fault is told by line and column.
    """
    try:
        return _DECODER.decode(text)
    except (ValueError, RecursionError) as error:
        fault: Exception = error
    if len(text) <= _MAX_EXPLAINED_BYTES:
        try:
            content = json.loads(text.decode(), parse_constant=_refuse_constant)
            json.dumps(content, ensure_ascii=False).encode()
        except (ValueError, RecursionError) as found:
            fault = found
    raise ValueError(str(fault))


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def raise_invalid(error: ValidationError) -> NoReturn:
    """Several faults make one message; the first names the `param`."""
    faults = error.errors(include_url=False)
    shown = [_describe(fault) for fault in faults[:3]]
    if len(faults) > len(shown):
        shown.append(f"and {len(faults) - len(shown)} more")
    raise InvalidRequest("; ".join(shown), param=_path(faults[0]) or None) from None


def _describe(fault: ErrorDetails) -> str:
    path = _path(fault) or "the body"
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
