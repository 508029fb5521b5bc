"""What all parts of a request body have in common: strict types, no unknown fields."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import ClassVar, NoReturn

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError

_MAX_SHOWN = 80  # characters of a refused value that the message repeats


class StrictFields(BaseModel):
    """Base of all request shapes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


class BodyFields(StrictFields):
    """Base of whole bodies, and what `bodies.py` does with fields that are no fields of the shape.

    Attributes:
        ignored: accepted, without effect.
        neutral: accepted with one of these values, which ask for nothing; others are refused.
    """

    ignored: ClassVar[frozenset[str]] = frozenset()
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {}


def refuse_value(message: str) -> NoReturn:
    """Refuse a value within a validator; `bodies.py` adds the field's path to the message."""
    raise PydanticCustomError("refused", "{reason}", {"reason": message})


_ENCODER = json.JSONEncoder(ensure_ascii=False, default=str)


def shown(value: object) -> str:
    """A refused value as JSON, cut to a length that fits in a message."""
    text = ""
    for piece in _ENCODER.iterencode(value):  # not to its end, which may be far
        text += piece
        if len(text) > _MAX_SHOWN:
            break
    return text if len(text) <= _MAX_SHOWN else text[: _MAX_SHOWN - 3] + "..."
