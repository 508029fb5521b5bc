"""The base of all parts of a request body: strict types, no unknown fields.

One rule holds for all of them at any depth: a null field is a missing field. It holds for the
shapes of this server, not for the client's own objects (schemas, arguments, metadata, variables). A
null in those has the client's meaning. A number such as 2.0 is an integer, as in JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, ClassVar, NoReturn, get_args

from pydantic import BaseModel, BeforeValidator, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

from models.protocol.errors import InvalidRequest

MAX_FIELDS = 128  # fields of one object; more could take a tenth of a second to name all faults
_MAX_SHOWN = 80  # characters of a refused value that the message repeats


class StrictFields(BaseModel):
    """Base of all request shapes.

    Attributes:
        ignored: fields that are accepted, without effect.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())
    ignored: ClassVar[frozenset[str]] = frozenset()

    @model_validator(mode="before")
    @classmethod
    def _present(cls, content: Any) -> Any:
        """Return the fields that are present."""
        if not isinstance(content, dict):
            return content
        check_number_of_fields(content)
        whole = _integer_fields(cls)
        return {
            name: integral(value) if name in whole else value
            for name, value in content.items()
            if not cls._is_left_out(name, content)
        }

    @classmethod
    def _is_left_out(cls, name: str, content: Mapping[str, Any]) -> bool:
        """Return whether a field counts as one that is missing."""
        return content[name] is None or name in cls.ignored


# vLLM's former fields for constraints, and what has taken their places.
FORMER_FIELDS: Mapping[str, str] = {
    "guided_json": "structured_outputs.json",
    "guided_json_object": "structured_outputs.json_object",
    "guided_regex": "structured_outputs.regex",
    "guided_choice": "structured_outputs.choice",
    "guided_grammar": "structured_outputs.grammar",
    "guided_decoding_backend": "structured_outputs, which needs no backend",
    "guided_decoding_disable_any_whitespace": "structured_outputs.disable_any_whitespace",
    "guided_decoding_disable_fallback": "structured_outputs, which has no fallback",
    "guided_whitespace_pattern": "structured_outputs.whitespace_pattern",
}


class BodyFields(StrictFields):
    """Base of whole bodies.

    Attributes:
        neutral: fields that are accepted with one of these values, which ask for nothing.
    """

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {}

    @classmethod
    def _is_left_out(cls, name: str, content: Mapping[str, Any]) -> bool:
        if super()._is_left_out(name, content):
            return True
        if name in FORMER_FIELDS:
            raise _not_taken(name, f"is no field any more; use {FORMER_FIELDS[name]}")
        if name in cls.model_fields or name not in cls.neutral:
            return False
        value = content[name]
        if name == "best_of" and _same(value, content.get("n")):  # nothing is chosen from
            return True
        present = without_nulls(value)
        if not any(_same(present, neutral) for neutral in cls.neutral[name]):
            raise _not_taken(name, f"{shown(value)} is not supported by this server")
        return True


def wrong_field(name: str, why: str, code: str | None = None) -> InvalidRequest:
    """Return the refusal of one field, whose message begins with its name."""
    return InvalidRequest(f"{name}: {why}", param=name, code=code)


def _not_taken(name: str, why: str) -> InvalidRequest:
    # No fault of a value: it is told alone, by a code of its own.
    return wrong_field(name, why, "unsupported_parameter")


def _same(value: object, neutral: object) -> bool:
    # 0 == False in Python, not in JSON.
    return value == neutral and isinstance(value, bool) == isinstance(neutral, bool)


@cache
def _integer_fields(shape: type[StrictFields]) -> frozenset[str]:
    fields = shape.model_fields.items()
    return frozenset(
        field.alias or name
        for name, field in fields
        if field.annotation is int or int in get_args(field.annotation)
    )


def check_number_of_fields(content: Mapping[str, Any]) -> None:
    """Refuse an object of more fields than one may have, before they are looked at."""
    if len(content) > MAX_FIELDS:
        refuse_value(f"at most {MAX_FIELDS} fields are allowed (got {len(content)})")


def at_most(limit: int) -> BeforeValidator:
    """Refuse a list of more items, before they are looked at."""

    def check(items: Any) -> Any:
        if isinstance(items, list) and len(items) > limit:
            refuse_value(f"at most {limit} are allowed (got {len(items)})")
        return items

    return BeforeValidator(check)


def integral(value: Any) -> Any:
    """Return the value, as an integer if it is a number without a fraction."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


def integers(items: Any) -> Any:
    """Return the list with its items read by `integral`."""
    if isinstance(items, list) and any(isinstance(item, float) for item in items):
        return [integral(item) for item in items]
    return items


def without_nulls(value: Any, depth: int = 8) -> Any:
    """Remove members of objects that are null, so many levels deep.

    It is for fields of this server that no shape reads, which nest no deeper.
    """
    if depth and isinstance(value, dict):
        present = {name: item for name, item in value.items() if item is not None}
        return {name: without_nulls(item, depth - 1) for name, item in present.items()}
    if depth and isinstance(value, list):
        return [without_nulls(item, depth - 1) for item in value]
    return value


def refuse_value(message: str) -> NoReturn:
    """Refuse a value within a validator; `bodies.py` adds the field's path to the message."""
    raise PydanticCustomError("refused", "{reason}", {"reason": message})


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)


def shown(value: object) -> str:
    """Show a refused value as JSON, cut to a length that fits in a message."""
    text = ""
    for piece in _ENCODER.iterencode(value):  # not to its end, which may be far
        text += piece
        if len(text) > _MAX_SHOWN:
            break
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
