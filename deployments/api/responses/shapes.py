"""The body of POST /v1/responses: what is served of it, and what is refused by name.

Nothing is stored, whatever `store` says: a conversation goes on when the client sends its items
again, answers included. So what refers to stored things (`previous_response_id`, `conversation`,
`prompt`) is refused. Extensions are those of chat completions that have no place in OpenAI's body.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal

from msgspec import UNSET, UnsetType
from pydantic import AfterValidator, BeforeValidator, Field, ValidationInfo, model_validator
from pydantic.json_schema import SkipJsonSchema

from deployments.api.responses.items import Items
from deployments.api.schemas.answers import LookaheadUsage, Metrics, Shape
from deployments.api.schemas.chat_fields import (
    ReasoningEffort,
    TemplateSettings,
    Verbosity,
)
from deployments.api.schemas.details import ChoiceDetails
from deployments.api.schemas.requests import IGNORED_FIELDS, SharedFields
from deployments.api.schemas.sampling_fields import MAX_LOGPROBS
from deployments.api.schemas.strict_fields import (
    StrictFields,
    at_most,
    refuse_value,
    shown,
)
from deployments.api.schemas.tool_fields import (
    MAX_TOOLS,
    ChoiceWord,
    FunctionDefinition,
    NamingChoice,
    check_depth,
    choice_of,
)

LOGPROBS = "message.output_text.logprobs"  # the one part that may be asked for beside the text
# Parts of items that this server never writes, and a copy of the reasoning, which is there as text.
_OF_OTHERS = (
    "code_interpreter_call.outputs",
    "computer_call_output.output.image_url",
    "file_search_call.results",
    "message.input_image.image_url",
    "reasoning.encrypted_content",
    "web_search_call.action.sources",
    "web_search_call.results",
)
_MAX_METADATA = 16  # entries, keys and values: OpenAI's limits
_MAX_KEY_CHARS = 64
_MAX_VALUE_CHARS = 512


def _metadata(content: Any) -> dict[str, str | None]:
    texts = content.values() if isinstance(content, dict) else [0]
    if not all(value is None or isinstance(value, str) for value in texts):
        refuse_value("must be an object of strings")
    if len(content) > _MAX_METADATA:
        refuse_value(f"at most {_MAX_METADATA} entries are allowed (got {len(content)})")
    for key, value in content.items():
        if len(key) > _MAX_KEY_CHARS or len(value or "") > _MAX_VALUE_CHARS:
            refuse_value(
                f"keys have at most {_MAX_KEY_CHARS} characters and values {_MAX_VALUE_CHARS} "
                f"(got {len(key)} and {len(value or '')})"
            )
    return content


def _only_function(content: Any) -> Any:
    if is_other_tool(content) or (isinstance(content, dict) and "type" not in content):
        refuse_value(f"type {shown(content.get('type'))} is not supported, only 'function'")
    return content


def is_other_tool(content: Any) -> bool:
    """Return whether it is a tool that would run in the server, which is not served."""
    kind = content.get("type") if isinstance(content, dict) else None
    return isinstance(kind, str) and kind != "function"


def _served(tools: Any, info: ValidationInfo) -> Any:
    """Leave out tools that are not served where none of them has to be called."""
    if info.data.get("mode") != "auto" or not isinstance(tools, list):
        return tools
    return [tool for tool in tools if not is_other_tool(tool)]


def _included(content: Any) -> list[str]:
    if not isinstance(content, list):
        refuse_value("must be a list")
    for index, name in enumerate(content):
        if name != LOGPROBS and name not in _OF_OTHERS:
            known = ", ".join((LOGPROBS, *_OF_OTHERS))
            refuse_value(f"item {index}: {shown(name)} is not known, only {known}")
    return [LOGPROBS] if LOGPROBS in content else []


class FunctionTool(FunctionDefinition):
    """A function that may be called; no other kind of tool is served."""

    type: Literal["function"]


class TextFormat(StrictFields):
    """Free text, any JSON object, or JSON that obeys a schema, which is enforced in any case."""

    type: Literal["text", "json_object", "json_schema"] = "text"
    name: str | None = Field(default=None, max_length=64, pattern=r"^[A-Za-z0-9_-]+$")
    description: str | None = None
    schema_: Annotated[dict[str, Any] | None, AfterValidator(check_depth)] = Field(
        default=None, alias="schema"
    )
    strict: bool | None = None


class TextOptions(StrictFields):
    """Options for the text of the answer."""

    format: TextFormat = Field(default_factory=TextFormat)
    verbosity: Verbosity | None = None


class ReasoningOptions(StrictFields):
    """Options for reasoning. No summary is written, because the reasoning itself is there."""

    ignored = frozenset({"summary", "generate_summary", "context"})

    effort: ReasoningEffort | None = None


class ResponsesStreamOptions(StrictFields):
    """Options for a stream's events besides text."""

    include_obfuscation: bool = False


class ChosenTool(NamingChoice):
    """The one function that must be called."""

    type: Literal["function"]
    name: str

    def mode_and_names(self) -> tuple[str, tuple[str, ...]]:
        """See `NamingChoice`."""
        return "", (self.name,)


class AllowedFunctions(NamingChoice):
    """The functions that may be called; the model sees the others too."""

    type: Literal["allowed_tools"]
    mode: Literal["auto", "required"]
    tools: Annotated[
        list[ChosenTool], Field(min_length=1, max_length=MAX_TOOLS), BeforeValidator(_served)
    ]

    def mode_and_names(self) -> tuple[str, tuple[str, ...]]:
        """See `NamingChoice`."""
        return self.mode, tuple(tool.name for tool in self.tools)


_Choice = Annotated[
    ChoiceWord | ChosenTool | AllowedFunctions,
    choice_of(
        '{"type": "function", "name": ...} or {"type": "allowed_tools", "mode": "auto" or '
        '"required", "tools": [{"type": "function", "name": ...}, ...]}'
    ),
]
_MetadataIn = Annotated[dict[str, str | None], Field(max_length=_MAX_METADATA)]


_Tools = Annotated[
    list[Annotated[FunctionTool, BeforeValidator(_only_function)]],
    Field(max_length=MAX_TOOLS),
    at_most(MAX_TOOLS),
]


class ResponsesRequest(SharedFields):
    """Body of POST /v1/responses."""

    # Nothing is stored, and tools that run in the server are none.
    ignored = IGNORED_FIELDS - {"metadata"} | {"max_tool_calls"}
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
        "include_reasoning": (True,),
        "skip_special_tokens": (True,),
        "include_stop_str_in_output": (False,),
        "enable_response_messages": (False,),
        "priority": (0,),
        "n": (1,),
        "stop": ([],),
        "logprobs": (False,),
    }

    input: Items
    instructions: str | None = None
    max_output_tokens: int | None = Field(default=None, ge=1)
    text: TextOptions = Field(default_factory=TextOptions)
    reasoning: ReasoningOptions = Field(default_factory=ReasoningOptions)
    tools: _Tools = Field(default_factory=list)
    other_tools: SkipJsonSchema[tuple[tuple[int, str], ...]] = ()  # left out: place and kind
    tool_choice: _Choice = "auto"
    parallel_tool_calls: bool = True
    include: Annotated[
        list[str],
        BeforeValidator(_included, json_schema_input_type=list[Literal[LOGPROBS, *_OF_OTHERS]]),
    ] = Field(default_factory=list)
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    truncation: Literal["auto", "disabled"] = "disabled"
    stream_options: ResponsesStreamOptions | None = None
    metadata: Annotated[
        dict[str, str | None], BeforeValidator(_metadata, json_schema_input_type=_MetadataIn)
    ] = Field(default_factory=dict)
    chat_template_kwargs: TemplateSettings = Field(default_factory=dict)  # an extension

    @model_validator(mode="before")
    @classmethod
    def _leave_out(cls, content: Any) -> Any:
        """Leave out tools that are not served, beside functions and where none must be called."""
        tools = content.get("tools") if isinstance(content, dict) else None
        if not isinstance(tools, list) or len(tools) > MAX_TOOLS:
            return content  # to be refused
        if content.get("tool_choice") == "required":
            return content
        others = tuple((i, tool["type"]) for i, tool in enumerate(tools) if is_other_tool(tool))
        if not others or len(others) == len(tools) or "other_tools" in content:
            return content
        served = [tool for tool in tools if not is_other_tool(tool)]
        return {**content, "tools": served, "other_tools": others}


class ResponsesUsage(Shape):
    """Tokens of one response."""

    input_tokens: int
    input_tokens_details: dict[str, int]
    output_tokens: int
    output_tokens_details: dict[str, int]
    total_tokens: int
    lookahead: LookaheadUsage | UnsetType = UNSET  # where a reward steered the text


class RunningResponse(Shape, kw_only=True):
    """A response before its end."""

    id: str
    object: Literal["response"] = "response"
    created_at: int
    completed_at: int | None
    status: Literal["in_progress", "completed", "incomplete"]
    error: None = None
    incomplete_details: dict[str, str] | None
    instructions: str | None
    max_output_tokens: int | None
    metadata: dict[str, str | None]
    model: str
    output: list[dict[str, Any]]
    parallel_tool_calls: bool
    previous_response_id: None = None
    reasoning: dict[str, str | None]
    background: Literal[False] = False
    store: Literal[False] = False
    temperature: float
    text: dict[str, Any]
    tool_choice: str | dict[str, Any]
    tools: list[dict[str, Any]]
    top_logprobs: int
    top_p: float
    truncation: Literal["auto", "disabled"]
    usage: ResponsesUsage | None = None


class ResponsesAnswer(RunningResponse, kw_only=True):
    """Answer of POST /v1/responses. `output` has messages, reasoning and calls as items."""

    seed: int
    metrics: Metrics
    speculation_details: list[ChoiceDetails] | UnsetType = UNSET


class ResponsesEvent(Shape):
    """An event of a stream, whose other fields depend on its `type`."""

    type: str
    sequence_number: int
