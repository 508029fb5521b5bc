"""The body of POST /v1/responses: what is served of it, and what is refused by name.

Nothing is stored, whatever `store` says: a conversation goes on when the client sends its items
again, answers included. So what refers to stored things (`previous_response_id`, `conversation`,
`prompt`) is refused. Extensions are those of chat completions that have no place in OpenAI's body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, Field

from deployments.api.lookahead.fields import LookaheadOptions
from deployments.api.responses.items import Items
from deployments.api.schemas.answers import LookaheadUsage, Metrics
from deployments.api.schemas.chat_fields import TemplateSettings
from deployments.api.schemas.details import ChoiceDetails
from deployments.api.schemas.requests import MAX_LOGPROBS, SpeculationOptions
from deployments.api.schemas.sampling_fields import LogitBias
from deployments.api.schemas.strict_fields import BodyFields, StrictFields, refuse_value, shown
from deployments.api.schemas.tool_fields import MAX_TOOLS, FunctionDefinition, allowed_choice

LOGPROBS = "message.output_text.logprobs"  # the one part that may be asked for beside the text
_MAX_METADATA = 16  # entries, keys and values: OpenAI's limits
_MAX_KEY_CHARS = 64
_MAX_VALUE_CHARS = 512


def _metadata(content: Any) -> dict[str, str]:
    if not isinstance(content, dict) or not all(isinstance(v, str) for v in content.values()):
        refuse_value("must be an object of strings")
    if len(content) > _MAX_METADATA:
        refuse_value(f"at most {_MAX_METADATA} entries are allowed (got {len(content)})")
    for key, value in content.items():
        if len(key) > _MAX_KEY_CHARS or len(value) > _MAX_VALUE_CHARS:
            refuse_value(
                f"keys have at most {_MAX_KEY_CHARS} characters and values {_MAX_VALUE_CHARS} "
                f"(got {len(key)} and {len(value)})"
            )
    return content


def _only_function(content: Any) -> Any:
    kind = content.get("type") if isinstance(content, dict) else None
    if isinstance(content, dict) and kind != "function":
        refuse_value(f"type {shown(kind)} is not supported, only 'function'")
    return content


def _choice(content: Any) -> str:
    """As a chat's `tool_choice` is read: a word, or with the names of functions."""
    if content in ("none", "auto", "required"):
        return str(content)
    if (name := _named(content)) is not None:
        return f"={name}"
    if isinstance(content, dict) and content.keys() == {"type", "mode", "tools"}:
        tools = content["tools"]
        if content["type"] == "allowed_tools" and isinstance(tools, list):
            read = allowed_choice(content["mode"], [_named(tool) for tool in tools])
            if read is not None:
                return read
    refuse_value(
        'must be none, auto, required, {"type": "function", "name": ...} or {"type": '
        '"allowed_tools", "mode": "auto" or "required", "tools": [{"type": "function", "name": '
        f"...}}, ...]}} with 1 to {MAX_TOOLS} tools (got {shown(content)})"
    )


def _named(content: Any) -> str | None:
    """The name in `{"type": "function", "name": ...}`; None: it is no such."""
    if not isinstance(content, dict) or content.keys() != {"type", "name"}:
        return None
    name = content["name"]
    return name if content["type"] == "function" and isinstance(name, str) else None


def _included(content: Any) -> list[str]:
    if not isinstance(content, list):
        refuse_value("must be a list")
    for index, name in enumerate(content):
        if name != LOGPROBS:
            refuse_value(f"item {index}: {shown(name)} is not supported, only {LOGPROBS!r}")
    return list(content[:1])


class FunctionTool(FunctionDefinition):
    """A function that may be called; no other kind of tool is served."""

    type: Literal["function"]


class TextFormat(StrictFields):
    """Free text, any JSON object, or JSON that obeys a schema, which is enforced in any case."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = Field(default=None, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")
    description: str | None = None
    schema_: dict[str, Any] | None = Field(default=None, alias="schema")
    strict: bool | None = None


class TextOptions(StrictFields):
    """How the text of the answer is to be."""

    format: TextFormat = Field(default_factory=TextFormat)
    verbosity: Literal["medium"] | None = None


class ResponsesStreamOptions(StrictFields):
    """What a stream carries besides text."""

    include_obfuscation: bool = False


class ChosenTool(StrictFields):
    """The one function that must be called."""

    type: Literal["function"]
    name: str


class AllowedFunctions(StrictFields):
    """The functions that may be called; the model sees the others too."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[list[ChosenTool], Field(min_length=1, max_length=MAX_TOOLS)]


_ChoiceIn = Literal["none", "auto", "required"] | ChosenTool | AllowedFunctions
_MetadataIn = Annotated[dict[str, str], Field(max_length=_MAX_METADATA)]


_Tools = list[Annotated[FunctionTool, BeforeValidator(_only_function)]]


class ResponsesRequest(BodyFields):
    """Body of POST /v1/responses."""

    ignored: ClassVar[frozenset[str]] = frozenset(
        {
            "store",  # nothing is stored
            "user",
            "service_tier",
            "safety_identifier",
            "prompt_cache_key",
            "prompt_cache_options",
            "prompt_cache_retention",
            "max_tool_calls",  # of tools that run in the server: there are none
        }
    )
    neutral: ClassVar[Mapping[str, tuple[object, ...]]] = {
        "access_programs": ([],),
        "background": (False,),
        "background_options": (),
        "context_management": ([],),
        "conversation": (),
        "image": (),
        "moderation": (),
        "previous_response_id": (),
        "prompt": (),
        "reasoning": ({}, {"effort": "none"}),
    }

    model: str
    input: Items
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    text: TextOptions = Field(default_factory=TextOptions)
    tools: list[Annotated[FunctionTool, BeforeValidator(_only_function)]] = Field(
        default_factory=list, max_length=MAX_TOOLS
    )
    tool_choice: Annotated[str, BeforeValidator(_choice, json_schema_input_type=_ChoiceIn)] = "auto"
    parallel_tool_calls: bool = True
    include: Annotated[
        list[str],
        BeforeValidator(
            _included, json_schema_input_type=list[Literal["message.output_text.logprobs"]]
        ),
    ] = Field(default_factory=list)
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    truncation: Literal["auto", "disabled"] = "disabled"
    stream: bool = False
    stream_options: ResponsesStreamOptions | None = None
    metadata: Annotated[
        dict[str, str], BeforeValidator(_metadata, json_schema_input_type=_MetadataIn)
    ] = Field(default_factory=dict)
    # Extensions, as in chat completions.
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    top_k: int = Field(default=0, ge=-1, lt=2**31)
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    repetition_penalty: float = Field(default=1.0, ge=0.001, le=1000.0)
    logit_bias: LogitBias = Field(default_factory=list)
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    chat_template_kwargs: TemplateSettings = Field(default_factory=dict)
    speculation: SpeculationOptions = Field(default_factory=SpeculationOptions)
    lookahead: LookaheadOptions | None = None


class ResponsesUsage(BaseModel):
    """Tokens of one response."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int
    lookahead: LookaheadUsage | None = None  # where a reward steered the text


class ResponsesAnswer(BaseModel):
    """Answer of POST /v1/responses. `output` has messages, reasoning and calls as items."""

    id: str
    object: Literal["response"]
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete"]
    error: None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: None
    reasoning: dict[str, None]
    background: Literal[False]
    store: Literal[False]
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponsesUsage | None
    seed: int
    metrics: Metrics
    speculation_details: list[ChoiceDetails] | None = None


class ResponsesEvent(BaseModel):
    """An event of a stream, whose other fields depend on its `type`."""

    type: str
    sequence_number: int
