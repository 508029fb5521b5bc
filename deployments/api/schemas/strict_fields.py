"""What all parts of a request body have in common: strict types, no unknown fields."""

from __future__ import annotations

from typing import NoReturn

from pydantic import BaseModel, ConfigDict
from pydantic_core import PydanticCustomError


class StrictFields(BaseModel):
    """Base of all request shapes."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, protected_namespaces=())


def refuse_value(message: str) -> NoReturn:
    """Refuse a value within a validator; `bodies.py` adds the field's path to the message."""
    raise PydanticCustomError("refused", "{reason}", {"reason": message})
