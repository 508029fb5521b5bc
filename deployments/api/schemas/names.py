"""Fields that name an entry of a registry: drafters and verification rules."""

from __future__ import annotations

from collections.abc import Collection
from functools import partial
from typing import Annotated, Any

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic_core import PydanticCustomError

from models.protocol.rules import RULES
from router.drafters.heads import HEADS_NAMES
from router.drafters.registry import DRAFTERS


def name_in(registry: Collection[str], value: Any) -> str:
    """Return `value`, a name of the registry.

    Raises:
        PydanticCustomError: it is none; the message lists them, as that of `Literal` does.
    """
    if isinstance(value, str) and value in registry:
        return value
    *others, last = [repr(name) for name in registry]
    expected = f"{', '.join(others)} or {last}" if others else last
    raise PydanticCustomError("literal_error", "Input should be {expected}", {"expected": expected})


# Draft models have names of their own, which the router knows: it refuses others with its list.
DrafterName = Annotated[
    str,
    Field(
        pattern="^[a-z][a-z0-9_-]{0,31}$",
        description=f"{', '.join(DRAFTERS)}; the name of a draft model of the config's `drafts`; "
        f"or what drafts in the target's process: {', '.join(HEADS_NAMES)}",
    ),
]
RuleName = Annotated[
    str,
    BeforeValidator(partial(name_in, RULES)),
    WithJsonSchema({"enum": list(RULES), "type": "string"}),
]
