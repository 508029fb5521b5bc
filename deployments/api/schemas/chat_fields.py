"""Fields of a chat beside its messages and tools: a prediction, variables for the chat template.

OpenAI's predicted outputs are a text that the client says its answer will mostly repeat. Variables,
such as `enable_thinking`, are vLLM's `chat_template_kwargs`.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from pydantic import BaseModel, BeforeValidator, Field

from deployments.api.history.content import MAX_PARTS, written_text
from deployments.api.schemas.strict_fields import StrictFields, refuse_value
from deployments.api.schemas.tool_fields import check_depth

MAX_SETTINGS_BYTES = 16_384
# A template gets these from elsewhere; special tokens come after these settings in any case.
_TAKEN = ("messages", "tools", "add_generation_prompt", "continue_final_message", "chat_template")
_encoder = msgspec.json.Encoder()


def _settings(content: Any) -> dict[str, Any]:
    if not isinstance(content, dict):
        refuse_value("must be an object of variables for the chat template")
    check_depth(content)
    num_bytes = len(_encoder.encode(content))
    if num_bytes > MAX_SETTINGS_BYTES:
        refuse_value(f"at most {MAX_SETTINGS_BYTES} bytes of JSON are allowed (got {num_bytes})")
    for name in _TAKEN:
        if name in content:
            refuse_value(f"{name!r} is not a setting of the template")
    return content


# A variable that the template does not know has no effect, as in vLLM.
TemplateSettings = Annotated[
    dict[str, Any], BeforeValidator(_settings, json_schema_input_type=dict[str, Any])
]


# Hints, which are variables of the template too: a model whose template knows none takes none.
ReasoningEffort = Literal["none", "minimal", "low", "medium", "high", "xhigh", "max"]
Verbosity = Literal["low", "medium", "high"]


def _text(content: Any) -> str:
    """Read a text: a string, or a list of parts.

    Parts follow each other without a separator.
    """
    return written_text(content, "")


class PredictedPart(BaseModel):
    """A part of a predicted text."""

    type: Literal["text"]
    text: str


_ContentIn = str | Annotated[list[PredictedPart], Field(min_length=1, max_length=MAX_PARTS)]


class Prediction(StrictFields):
    """The predicted text. It is drafted from and changes nothing else; see `router.drafters`."""

    type: Literal["content"]
    content: Annotated[str, BeforeValidator(_text, json_schema_input_type=_ContentIn)]
