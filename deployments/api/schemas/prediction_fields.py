"""OpenAI's predicted outputs: a text that the client says its answer will mostly repeat."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, Field

from deployments.api.schemas.strict_fields import StrictFields, refuse_value

_MAX_PARTS = 4096


def _text(content: Any) -> str:
    """A text is a string or a list of parts, which follow each other as they are."""
    if isinstance(content, str):
        return content
    if not isinstance(content, list) or not content:
        refuse_value("must be a string or a non-empty list of text parts")
    if len(content) > _MAX_PARTS:
        refuse_value(f"at most {_MAX_PARTS} parts are allowed (got {len(content)})")
    texts = []
    for index, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        if kind != "text":
            refuse_value(f"part {index}: type {kind!r:.40} is not supported, only 'text'")
        if not isinstance(part.get("text"), str):
            refuse_value(f"part {index}: text must be a string")
        texts.append(part["text"])
    return "".join(texts)


class PredictedPart(BaseModel):
    """A part of a predicted text."""

    type: Literal["text"]
    text: str


_ContentIn = str | Annotated[list[PredictedPart], Field(min_length=1, max_length=_MAX_PARTS)]


class Prediction(StrictFields):
    """The predicted text. It is drafted from and changes nothing else; see `router.drafters`."""

    type: Literal["content"]
    content: Annotated[str, BeforeValidator(_text, json_schema_input_type=_ContentIn)]
