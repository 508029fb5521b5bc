"""Another draft model for running replicas: Serve's `user_config` of a Draft deployment.

Its `model_path` is loaded beside the model that serves, in the same replica, under the limits of
`args`. `deployments.engine.swap` describes the rest. Taken away, the model of `args` comes back. A
refusal here changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field, ValidationError

from deployments.config.fault import Fault
from deployments.config.model_files import (
    check_files,
    check_pair,
    num_shared_with,
)
from deployments.config.sections.models import ModelConfig, describe
from models.checkpoint.small_files import longest_text
from models.config import PositiveFloat, PositiveInt, Section

_KEY = "user_config: model_path"


class DraftUserConfig(Section):
    """The keys of a Draft deployment's `user_config`."""

    model_path: str = Field(
        default="",
        description="absolute path of another draft model's folder, on every node that has a "
        "replica; empty: that of args",
    )
    promote: Literal["better", "now"] = Field(
        default="better",
        description="better: once it says no fewer tokens of texts that end than the one that "
        "serves; now: once it is loaded and drafts",
    )
    compare_answers: PositiveInt = Field(
        default=32, description="texts that both are asked about before that is decided"
    )
    compare_timeout_s: PositiveFloat = Field(
        default=3600.0, description="seconds in which so many must end, or the new one is dropped"
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class WantedDraft:
    """A draft model that is to serve, and on what terms it takes over."""

    model: ModelConfig
    promote: Literal["better", "now"] = "now"
    compare_answers: int = 1
    compare_timeout_s: float = 3600.0


def draft_user_config(user_config: object) -> DraftUserConfig:
    """Read the `user_config` of a Draft deployment, a tree of plain values.

    None means that nothing is requested.

    Raises:
        ValueError: one message that names every key at fault.
    """
    try:
        return DraftUserConfig.model_validate({} if user_config is None else user_config)
    except ValidationError as error:
        raise ValueError(f"user_config: {describe(error)}") from None


def wanted_draft(base: ModelConfig, user_config: object) -> WantedDraft:
    """Return the draft model that `user_config` asks for.

    It reads the folder's small files, no weights.

    Args:
        base: the resolved model of `args`, whose limits hold and whose token ids are the target's.
        user_config: as Serve hands it over.

    Raises:
        ValueError: a key is wrong, the folder is missing or incomplete, or its token ids mean
            something else.
    """
    asked = draft_user_config(user_config)
    if asked.model_path in ("", base.model_path):
        return WantedDraft(model=base)
    return WantedDraft(
        model=_in_place_of(base, Path(asked.model_path)),
        promote=asked.promote,
        compare_answers=asked.compare_answers,
        compare_timeout_s=asked.compare_timeout_s,
    )


def _in_place_of(base: ModelConfig, folder: Path) -> ModelConfig:
    if not folder.is_absolute() or not folder.is_dir():
        raise Fault(_KEY, f"must be the absolute path of a folder on this node, got '{folder}'")
    check_files(folder, _KEY, has_grammars=False)
    served = Path(base.model_path)
    check_pair(served, folder, _KEY)
    num_shared = num_shared_with(served, folder, _KEY)
    longest = longest_text(folder) or base.max_model_len
    return base.model_copy(
        update={
            "model_path": str(folder),
            "revision": None,
            "max_model_len": min(longest, base.max_model_len),
            "vocab_size": min(base.vocab_size or num_shared, num_shared),
        }
    )
