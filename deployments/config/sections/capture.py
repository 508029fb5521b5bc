"""The section `router.capture`."""

from __future__ import annotations

from pydantic import Field

from models.config import PositiveFloat, PositiveInt, Section


class CaptureConfig(Section):
    """Answers of real requests that are kept to train drafters on."""

    folder: str = Field(
        default="",
        description="where token ids of prompts and answers are written, for python -m "
        "models.distill; on each router's node; empty: nothing is kept",
    )
    max_size_mib: PositiveInt = Field(
        default=256, description="MiB of all files; the oldest are deleted"
    )
    max_age_hours: PositiveFloat = Field(
        default=168.0, description="hours after which a file is deleted"
    )
