"""What every section of the config tree is made of: frozen, no unknown keys, sizes and seconds."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from deployments.config.byte_size import byte_size

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
ByteSize = Annotated[PositiveInt, BeforeValidator(byte_size)]


class Section(BaseModel):
    """A frozen part of the tree that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
