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

from pydantic import BaseModel, ConfigDict, model_validator
from pydantic_core import PydanticCustomError

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
            if value is not None and name not in cls.ignored
        }


class BodyFields(StrictFields):
    """Base of whole bodies, and what `bodies.py` does with fields that are no fields of the shape.

    Attributes:
        neutral: accepted with one of these values, which ask for nothing; others are refused.
    """

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {}


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


def nests_deeper(value: Any, levels: int) -> bool:
    """Return whether JSON nests more than so many levels deep, without recursion."""
    level = [value]
    for _ in range(levels):
        level = [
            child
            for item in level
            if isinstance(item, dict | list)
            for child in (item.values() if isinstance(item, dict) else item)
        ]
        if not level:
            return False
    return True


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
