"""What every section of the config tree is made of: frozen, no unknown keys, sizes and seconds."""

from __future__ import annotations

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field
from pydantic import ByteSize as AnyByteSize

PositiveInt = Annotated[int, Field(gt=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
ByteSize = Annotated[AnyByteSize, Field(gt=0)]  # bytes, or "2GiB"


class Section(BaseModel):
    """A frozen part of the tree that refuses keys it does not know."""

    model_config = ConfigDict(extra="forbid", frozen=True, protected_namespaces=())
