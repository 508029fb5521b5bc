"""Fields that name an entry of a registry: drafters and verification rules."""

from __future__ import annotations

from collections.abc import Collection
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from models.protocol.rules import RULES
from router.drafters.heads import HEADS_NAMES
from router.drafters.registry import DRAFTERS


class NameOf:
    """Lets a string pass that is a key of `registry` now, as `Literal` does with fixed ones."""

    def __init__(self, registry: Collection[str]) -> None:
        self._registry = registry

    def __get_pydantic_core_schema__(self, _: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """See pydantic's guide to custom types."""
        return core_schema.no_info_plain_validator_function(
            self.checked, serialization=core_schema.to_string_ser_schema()
        )

    def __get_pydantic_json_schema__(
        self, _: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        """See pydantic's guide to custom types."""
        return {"enum": list(self._registry), "type": "string"}

    def checked(self, value: Any) -> str:
        """`value`, a name of the registry.

        Raises:
            PydanticCustomError: it is none; the message lists them.
        """
        if isinstance(value, str) and value in self._registry:
            return value
        *others, last = [repr(name) for name in self._registry]
        expected = f"{', '.join(others)} or {last}" if others else last
        raise PydanticCustomError(
            "literal_error", "Input should be {expected}", {"expected": expected}
        )


# Draft models have names of their own, which the router knows: it refuses others with its list.
DrafterName = Annotated[
    str,
    Field(
        pattern="^[a-z][a-z0-9_-]{0,31}$",
        description=f"{', '.join(DRAFTERS)}; the name of a draft model of the config's `drafts`; "
        f"or what drafts in the target's process: {', '.join(HEADS_NAMES)}",
    ),
]
RuleName = Annotated[str, NameOf(RULES)]
