"""Default sampling of a served model, for the fields that a request does not have.

They come from the checkpoint's generation_config.json, as in vLLM. An operator may replace or drop
them. `max_new_tokens` is not among them: `router.default_max_tokens` says how long answers are.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

from pydantic import Field, ValidationError

from deployments.api.schemas.strict_fields import StrictFields
from models.config import Section

FILE = "generation_config.json"
AUTO, NONE = "auto", "vllm"  # vLLM's words
_STEERED = ("repetition_penalty",)  # does not go with look-aheads

Asked = TypeVar("Asked", bound=StrictFields)


class SamplingDefaults(Section):
    """Values for requests that have none of their own; None: OpenAI's default."""

    temperature: Annotated[float, Field(ge=0.0, le=2.0)] | None = Field(
        default=None, description="null: as generation_config says, else 1"
    )
    top_p: Annotated[float, Field(gt=0.0, le=1.0)] | None = Field(
        default=None, description="null: as generation_config says, else 1"
    )
    top_k: Annotated[int, Field(ge=-1, lt=2**31)] | None = Field(
        default=None, description="null: as generation_config says, else 0, all tokens"
    )
    min_p: Annotated[float, Field(ge=0.0, le=1.0)] | None = Field(
        default=None, description="null: as generation_config says, else 0"
    )
    repetition_penalty: Annotated[float, Field(ge=0.001, le=1000.0)] | None = Field(
        default=None, description="null: as generation_config says, else 1"
    )

    @property
    def given(self) -> dict[str, float | int]:
        """The values that there are, by field."""
        return self.model_dump(exclude_none=True)

    def __str__(self) -> str:
        """Write it for a log line."""
        return ", ".join(f"{name} {value:g}" for name, value in self.given.items())


def sampling_defaults(
    source: str, of_checkpoint: Mapping[str, Any], overrides: SamplingDefaults
) -> SamplingDefaults:
    """Return the defaults that a config asks for.

    Args:
        source: `auto`, `vllm` (none), or a folder with the file.
        of_checkpoint: the file's content beside the tokenizer.
        overrides: the operator's own.

    Raises:
        ValueError: the file cannot be read, or a value in it is out of range; names file and key.
    """
    content = of_checkpoint
    if source == NONE:
        content = {}
    elif source != AUTO:
        content = _read(Path(source) / FILE)
    known = {name: content.get(name) for name in SamplingDefaults.model_fields}
    try:
        found = SamplingDefaults.model_validate(known)
    except ValidationError as error:
        fault = error.errors()[0]
        raise ValueError(
            f"{FILE}: {fault['loc'][0]}: {fault['msg']} (got {fault['input']!r:.40}); "
            f"router.generation_config: {NONE} ignores the file"
        ) from None
    return SamplingDefaults.model_validate(found.given | overrides.given)


def with_defaults(request: Asked, defaults: SamplingDefaults) -> Asked:
    """Fill fields that the request does not have with the model's defaults."""
    lookahead = getattr(request, "lookahead", None)
    is_steered = lookahead is not None and lookahead.method != "off"
    added = {
        name: value
        for name, value in defaults.given.items()
        if name not in request.model_fields_set and not (is_steered and name in _STEERED)
    }
    return request.model_copy(update=added) if added else request


def _read(path: Path) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"router.generation_config: {path}: {error}") from None
    if not isinstance(content, dict):
        raise ValueError(f"router.generation_config: {path}: must hold a JSON object")
    return content
