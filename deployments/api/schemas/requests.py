"""The OpenAI wire format: what requests may say, what errors look like and which status they have.

Only shapes and their own limits are here. Constraints are in `grammar_fields.py`, and `bodies.py`
reads a body. Limits of the config are in `requests.py`, and the shapes of successful answers in
`answers.py`. Types are strict (no "1" for 1) and unknown fields are refused, so that a misspelt
parameter never passes silently. Extensions to OpenAI's own fields have vLLM's words. They are
`top_k`, `min_p`, `repetition_penalty`, `ignore_eos`, `min_tokens`, `bad_words`, `stop_token_ids`,
`prompt_logprobs`, `include_stop_str_in_output`, `structured_outputs` and `cache_salt`. Our own are
`speculation` and `lookahead`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, PlainValidator

from deployments.api.history.message import Messages
from deployments.api.lookahead.fields import LookaheadOptions
from deployments.api.schemas.answers import Shape
from deployments.api.schemas.chat_fields import (
    Prediction,
    ReasoningEffort,
    TemplateSettings,
    Verbosity,
)
from deployments.api.schemas.grammar_fields import ResponseFormat, StructuredOutputs
from deployments.api.schemas.names import DrafterName, RuleName
from deployments.api.schemas.sampling_fields import (
    MAX_LOGPROBS,
    BadWords,
    LogitBias,
    NoFalse,
    ResumedIds,
    StopTokenIds,
)
from deployments.api.schemas.strict_fields import BodyFields, StrictFields, integers, refuse_value
from deployments.api.schemas.tool_fields import ToolChoiceField, ToolList
from models.protocol.errors import (
    ContextTooLong,
    DeadlineExceeded,
    InvalidRequest,
    Overloaded,
    ServingError,
    Unavailable,
    UnknownModel,
    UnsupportedGrammar,
)

# --- requests -----------------------------------------------------------------------------------


def _listed_stop(stop: Any) -> list[str]:
    texts = [stop] if isinstance(stop, str) else stop
    if not isinstance(texts, list) or not all(isinstance(text, str) for text in texts):
        refuse_value("must be a string or a list of strings")
    if not all(texts):
        refuse_value("a stop string must not be empty")
    return texts


def _listed_prompts(prompt: Any) -> list[str | list[int]]:
    """List the prompts.

    A prompt is a string or token ids; a list holds several of one kind.
    """
    prompt = [integers(item) for item in integers(prompt)] if isinstance(prompt, list) else prompt
    is_listed = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], str | list)
    prompts = prompt if is_listed else [prompt]
    for index, one in enumerate(prompts):
        if type(one) is not type(prompts[0]):
            refuse_value(f"prompt {index}: must be of the same kind as the others")
        are_ids = isinstance(one, list) and bool(one) and all(type(item) is int for item in one)
        if not isinstance(one, str) and not are_ids:
            where = f"prompt {index}: " if len(prompts) > 1 else ""
            refuse_value(f"{where}must be a string or a non-empty list of token ids")
    return prompts


# The OpenAPI page shows these shapes; the validators above accept the same.
_StopText = Annotated[str, Field(min_length=1)]
_StopIn = _StopText | list[_StopText]
_TokenIdsIn = Annotated[list[int], Field(min_length=1)]
_Listed = Field(min_length=1)
_PromptIn = (
    str | _TokenIdsIn | Annotated[list[str], _Listed] | Annotated[list[_TokenIdsIn], _Listed]
)


Prompts = Annotated[
    list[str | list[int]], PlainValidator(_listed_prompts, json_schema_input_type=_PromptIn)
]


class StreamOptions(StrictFields):
    """Options for a stream's events besides text.

    `continuous_usage_stats` asks for the usage at the end as well, as in vLLM. It has no effect if
    that is refused.
    """

    include_usage: bool = False
    continuous_usage_stats: bool = False
    include_obfuscation: bool = False  # see `api/writing/obfuscation.py`

    @property
    def asks(self) -> bool:
        """True if anything is asked for."""
        return self.include_usage or self.continuous_usage_stats or self.include_obfuscation

    @property
    def wants_usage(self) -> bool:
        """True if the stream ends with an event that has the usage."""
        return self.include_usage or (
            self.continuous_usage_stats and "include_usage" not in self.model_fields_set
        )


class SpeculationOptions(StrictFields):
    """Options for drafts: on or off, their length, the drafter, and the rule that verifies them.

    The distribution of the text never depends on it; with `coupled`, no text with a seed does.
    """

    enabled: bool = True
    k: int | None = Field(default=None, ge=0)  # upper limit: the config's
    verification: RuleName | None = None  # None: the config's
    drafter: DrafterName | None = None  # None: the config's
    draft_sample_method: Literal["probabilistic", "greedy"] | None = None  # None: the config's
    # No drafts while more sessions run on its target; the lower of this and the config's holds.
    disable_by_batch_size: int | None = Field(default=None, ge=1)
    details: bool = False  # tell all rounds, see `api/schemas/details.py`
    compare: bool = False  # tell what each draft model would have drafted along the answer


# Accepted and without effect: they describe the client or its billing, not the text.
IGNORED_FIELDS = frozenset(
    {
        "user",
        "metadata",
        "store",
        "service_tier",
        "safety_identifier",
        "prompt_cache_key",
        "prompt_cache_options",
        "prompt_cache_retention",
        "client_metadata",
        "request_id",
    }
)

# Fields with an effect we do not offer: only the values that ask for nothing are accepted.
# `null` is accepted everywhere and means absent.
NEUTRAL_VALUES: Mapping[str, tuple[object, ...]] = {
    "best_of": (1,),
    "echo": (False,),
    "prediction": (),
    "chat_template_kwargs": ({},),
    "suffix": ("",),
    "top_logprobs": (0,),
    "tools": ([],),
    "tool_choice": ("none", "auto"),
    "parallel_tool_calls": (True, False),
    "functions": ([],),
    "function_call": ("none", "auto"),
    "modalities": (["text"],),
    "audio": (),
    "web_search_options": (),
    "moderation": (),
    "reasoning_effort": ("none",),
    "verbosity": ("medium",),
    # vLLM's, at their defaults.
    "skip_special_tokens": (True,),
    "spaces_between_special_tokens": (True,),
    "add_generation_prompt": (True,),
    "continue_final_message": (False,),
    "chat_template": (),
    "include_reasoning": (True,),
    "documents": ([],),
    "use_beam_search": (False,),
    "length_penalty": (1.0,),
    "early_stopping": (False,),
    "priority": (0,),
    "allowed_token_ids": (),
    "truncate_prompt_tokens": (),
    "return_tokens_as_token_ids": (False,),
    "logits_processors": ([],),
    "mm_processor_kwargs": ({},),
    "media_io_kwargs": ({},),
    "vllm_xargs": ({},),
    "kv_transfer_params": ({},),
    # OpenRouter's.
    "reasoning": ({}, {"enabled": True}, {"exclude": False}, {"enabled": True, "exclude": False}),
    "plugins": ([],),
    "transforms": ([],),
}


class SharedFields(BodyFields):
    """The fields that all routes share which write text."""

    model: str
    temperature: float = Field(default=1.0, ge=0.0, le=2.0)
    top_p: float = Field(default=1.0, gt=0.0, le=1.0)
    top_k: int = Field(default=0, ge=-1, lt=2**31)  # 0 and -1: off
    min_p: float = Field(default=0.0, ge=0.0, le=1.0)
    presence_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    frequency_penalty: float = Field(default=0.0, ge=-2.0, le=2.0)
    # Any logit times or divided by it stays far within float32.
    repetition_penalty: float = Field(default=1.0, ge=0.001, le=1000.0)
    seed: int | None = Field(default=None, ge=-(2**63), lt=2**64)
    logit_bias: LogitBias = Field(default_factory=list)
    min_tokens: int = Field(default=0, ge=0)
    ignore_eos: bool = False
    cache_salt: Annotated[str, Field(min_length=1, max_length=256)] | None = None
    speculation: SpeculationOptions = Field(default_factory=SpeculationOptions)
    lookahead: LookaheadOptions | None = None
    stream: bool = False


class GenerationFields(SharedFields):
    """The fields that chats and completions share."""

    ignored = IGNORED_FIELDS
    neutral = NEUTRAL_VALUES

    max_tokens: int | None = Field(default=None, ge=0)  # 0: the prompt alone, see `requests.py`
    bad_words: BadWords = Field(default_factory=list)
    prompt_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    n: int = Field(default=1, ge=1)  # upper limit: the served model's
    stop: Annotated[list[str], BeforeValidator(_listed_stop, json_schema_input_type=_StopIn)] = (
        Field(default_factory=list)
    )
    stop_token_ids: StopTokenIds = Field(default_factory=list)
    include_stop_str_in_output: bool = False
    stream_options: StreamOptions | None = None
    response_format: ResponseFormat | None = None
    structured_outputs: StructuredOutputs | None = None
    return_token_ids: bool = False
    resume_token_ids: ResumedIds = Field(default_factory=list)  # with Last-Event-ID


class ChatCompletionRequest(GenerationFields):
    """Body of POST /v1/chat/completions."""

    messages: Messages
    max_completion_tokens: int | None = Field(default=None, ge=0)
    logprobs: bool = False
    top_logprobs: int | None = Field(default=None, ge=0, le=MAX_LOGPROBS)
    tools: ToolList = Field(default_factory=list)
    tool_choice: ToolChoiceField = "auto"
    parallel_tool_calls: bool = True
    prediction: Prediction | None = None
    chat_template_kwargs: TemplateSettings = Field(default_factory=dict)
    reasoning_effort: ReasoningEffort | None = None
    verbosity: Verbosity | None = None

    @property
    def template_settings(self) -> dict[str, Any]:
        """Variables of the chat template: hints to the model, and what the client names itself."""
        hints: dict[str, Any] = {"verbosity": self.verbosity} if self.verbosity else {}
        if self.reasoning_effort is not None:
            hints["reasoning_effort"] = self.reasoning_effort
        if self.reasoning_effort == "none":
            hints["enable_thinking"] = False
        return hints | self.chat_template_kwargs


class CompletionRequest(GenerationFields):
    """Body of POST /v1/completions."""

    prompt: Prompts
    echo: bool = False
    logprobs: Annotated[int | None, NoFalse] = Field(default=None, ge=0, le=MAX_LOGPROBS)


# --- errors -------------------------------------------------------------------------------------


class ErrorDetail(Shape):
    """The inside of an OpenAI error."""

    message: str
    type: str
    param: str | None
    code: str | None


class ErrorBody(Shape):
    """Every answer that is not a success, and the event that ends a broken stream."""

    error: ErrorDetail


class BodyTooLarge(InvalidRequest):
    """The body is longer than the configured limit."""

    code = "body_too_large"


ACCEPTED_ENCODINGS = ("gzip", "deflate")  # encodings of bodies


class UnsupportedEncoding(InvalidRequest):
    """The body is encoded in a way that is not taken here."""

    code = "unsupported_encoding"


class RouteError(InvalidRequest):
    """No such route (404), or not with this method (405)."""

    def __init__(self, message: str, *, status: int) -> None:
        super().__init__(message, code="unknown_route" if status == 404 else "invalid_request")
        self.status = status


class Unauthorized(InvalidRequest):
    """No API key, or one that is not known."""

    code = "invalid_api_key"


class StreamParted(InvalidRequest):
    """A stream cannot go on: its request does not write the same text any more."""

    code = "stream_parted"


@dataclass(frozen=True, slots=True)
class ErrorAnswer:
    """An error as HTTP has it."""

    status: int
    headers: Mapping[str, str]
    body: ErrorBody


# The first class that fits counts, so children come before their parents.
_STATUSES: tuple[tuple[type[ServingError], int, str], ...] = (
    (UnknownModel, 404, "invalid_request_error"),
    (BodyTooLarge, 413, "invalid_request_error"),
    (UnsupportedEncoding, 415, "invalid_request_error"),
    (Unauthorized, 401, "invalid_request_error"),
    (StreamParted, 409, "invalid_request_error"),
    (ContextTooLong, 400, "invalid_request_error"),
    (UnsupportedGrammar, 400, "invalid_request_error"),
    (InvalidRequest, 400, "invalid_request_error"),
    (Overloaded, 429, "rate_limit_error"),
    (DeadlineExceeded, 504, "timeout_error"),
    (Unavailable, 503, "service_unavailable_error"),
)


def answer_error(error: ServingError, request_id: str) -> ErrorAnswer:
    """Return the HTTP answer for an error: the only place that chooses a status.

    An error that is the server's own fault (500) shows only the id under which it was logged.
    """
    status, kind = next(
        ((status, kind) for cls, status, kind in _STATUSES if isinstance(error, cls)),
        (500, "server_error"),
    )
    if isinstance(error, RouteError):
        status = error.status
    headers: dict[str, str] = {}
    if isinstance(error, Overloaded | Unavailable):
        headers["retry-after"] = str(max(1, round(error.retry_after_s)))
    elif isinstance(error, Unauthorized):
        headers["www-authenticate"] = "Bearer"
    elif isinstance(error, UnsupportedEncoding):
        headers["accept-encoding"] = ", ".join(ACCEPTED_ENCODINGS)
    message = error.message
    if status == 500:
        message = f"the server failed to complete this request; its log has request {request_id}"
    detail = ErrorDetail(message=message, type=kind, param=error.param, code=error.code)
    return ErrorAnswer(status, headers, ErrorBody(error=detail))
