"""Variables that a request gives the model's chat template, such as `enable_thinking`."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from pydantic import BeforeValidator

from deployments.api.schemas.strict_fields import refuse_value
from deployments.api.schemas.tool_fields import check_depth

MAX_SETTINGS_BYTES = 16_384
# What a template has from elsewhere; special tokens come after these settings in any case.
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
