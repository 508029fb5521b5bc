"""Bodies and answers of POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from deployments.api.history.message import Messages
from deployments.api.schemas.answers import Shape
from deployments.api.schemas.chat_fields import TemplateSettings
from deployments.api.schemas.sampling_fields import MAX_BODY_IDS, token_ids_to
from deployments.api.schemas.strict_fields import BodyFields
from deployments.api.schemas.tool_fields import ToolList


class TokenizeRequest(BodyFields):
    """Body of POST /tokenize: a `prompt` or a conversation.

    `add_special_tokens` is of a prompt: those of a conversation are written by its chat template.
    """

    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "continue_final_message": (False,),
        "chat_template": (),
        "media_io_kwargs": ({},),
        "mm_processor_kwargs": ({},),
    }

    model: str | None = None
    prompt: str | None = None
    add_special_tokens: bool | None = None  # None: of a prompt they are added
    return_token_strs: bool = False
    messages: Messages | None = None
    tools: ToolList = Field(default_factory=list)
    add_generation_prompt: bool = True
    chat_template_kwargs: TemplateSettings = Field(default_factory=dict)


class DetokenizeRequest(BodyFields):
    """Body of POST /detokenize."""

    model: str | None = None
    tokens: Annotated[list[int], token_ids_to(MAX_BODY_IDS)]


class TokenizeAnswer(Shape):
    """Answer of POST /tokenize. `token_strs` are the tokens' names, as logprobs have them."""

    count: int
    max_model_len: int
    tokens: list[int]
    token_strs: list[str] | None


class DetokenizeAnswer(Shape):
    """Answer of POST /detokenize: the text, special tokens by their names."""

    prompt: str
