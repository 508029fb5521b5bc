"""Builds GET /openapi.json: every route, its bodies and its answers (OpenAPI 3.1).

Bodies and answers are described by the models that read and write them (`requests.py`,
`answers.py`). The table below assigns them to routes, and the application's routes are made of it
(`http.py`). Source: OpenAPI Specification 3.1.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.metadata import PackageNotFoundError, version
from inspect import cleandoc
from typing import Any

import msgspec

from deployments.api.playground.page import PAGE_PATHS
from deployments.api.requests import ServedModel
from deployments.api.responses.shapes import ResponsesAnswer, ResponsesEvent, ResponsesRequest
from deployments.api.schemas.answers import (
    ChatCompletion,
    ChatCompletionChunk,
    Completion,
    HealthStatus,
    LiveStatus,
    ModelCard,
    ModelList,
    Shape,
    VersionStatus,
)
from deployments.api.schemas.grammar_check import GrammarCheckAnswer, GrammarCheckRequest
from deployments.api.schemas.request_schemas import REFS, Schema, request_schemas
from deployments.api.schemas.requests import (
    ACCEPTED_ENCODINGS,
    ChatCompletionRequest,
    CompletionRequest,
    ErrorBody,
)
from deployments.api.schemas.strict_fields import BodyFields
from deployments.api.tokens.shapes import (
    DetokenizeAnswer,
    DetokenizeRequest,
    TokenizeAnswer,
    TokenizeRequest,
)

_ABOUT = """OpenAI's routes for chat and text completions, with vLLM's and own extensions.

`null` means absent, for every field that is not required. Integers are written without a decimal
point. Beyond what the schemas say a request is refused (400) when the prompt leaves no room in the
context window (more `max_tokens` than it leaves are cut), when `max_tokens` is 0 without `echo` or
`prompt_logprobs`, when `max_tokens` and `max_completion_tokens` differ, when `min_tokens`
exceeds `max_tokens`, with `stream_options` without `stream: true`, with `prompt_logprobs` and
`stream: true`, with `top_logprobs` without `logprobs: true`, with two constraints on one answer or
one that cannot be compiled, with `json_schema` in a `response_format` of another type or missing
in its own, with two tools of one name, a `tool_choice` that is not among the tools, and when a key
of `logit_bias` is no token id of the model. The body has a limit of bytes (413), before and after
its Content-Encoding is undone.
"""
_MEANINGS = {
    400: "The request is at fault: message, `param` and `code` say how.",
    401: "An API key is needed, or it is not known.",
    404: "Another model is served here, or there is no such route.",
    409: "The stream cannot go on behind that event: the text is another one now.",
    413: "The body is longer than the limit.",
    415: "The body's Content-Encoding is not taken; `Accept-Encoding` lists those that are.",
    429: "There is no room now; try again after `Retry-After` seconds.",
    500: "A fault of the server, which its log explains.",
    503: "A part of the service cannot be reached now.",
    504: "A wait reached its limit.",
}
_OF_A_TEXT = (400, 404, 413, 415, 429, 500, 504)
_OF_A_COMPLETION = (400, 404, 413, 415, 429, 500, 503, 504)
_OF_A_STREAM = (400, 404, 409, 413, 415, 429, 500, 503, 504)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One route.

    `handler` names the method of `http.Handlers` that answers it. `errors` are statuses with an
    error body, those of keys aside.
    """

    path: str  # as Starlette's router has it
    name: str
    handler: str
    about: str
    answers: Mapping[int, type[Shape] | str]  # by status; a string: a media type of text
    takes: type[BodyFields] | None = None
    streams: type[Shape] | None = None  # shape of a stream's events
    errors: tuple[int, ...] = (500,)
    is_open: bool = False  # True: needs no API key
    parameters: list[Schema] = field(default_factory=list)

    @property
    def method(self) -> str:
        """The method of HTTP."""
        return "GET" if self.takes is None else "POST"


_HEALTH: Mapping[int, type[Shape] | str] = {200: HealthStatus, 503: HealthStatus}
_NAME: Schema = {"name": "name", "in": "path", "required": True, "schema": {"type": "string"}}
_LAST_EVENT_ID: Schema = {
    "name": "last-event-id",
    "in": "header",
    "description": "Of the last event that came of a stream that broke, which goes on behind it.",
    "schema": {"type": "string"},
}
OPERATIONS = (
    Operation(
        path="/v1/chat/completions",
        name="createChatCompletion",
        handler="chat_completions",
        about="The assistant's next turn of a conversation.",
        takes=ChatCompletionRequest,
        answers={200: ChatCompletion},
        streams=ChatCompletionChunk,
        errors=_OF_A_STREAM,
        parameters=[_LAST_EVENT_ID],
    ),
    Operation(
        path="/v1/completions",
        name="createCompletion",
        handler="completions",
        about="The text that follows a prompt.",
        takes=CompletionRequest,
        answers={200: Completion},
        streams=Completion,
        errors=_OF_A_STREAM,
        parameters=[_LAST_EVENT_ID],
    ),
    Operation(
        path="/v1/responses",
        name="createResponse",
        handler="responses",
        about="An answer as items: messages, reasoning, calls of functions. Nothing is stored.",
        takes=ResponsesRequest,
        answers={200: ResponsesAnswer},
        streams=ResponsesEvent,
        errors=_OF_A_COMPLETION,
    ),
    Operation(
        path="/v1/grammar/check",
        name="checkGrammar",
        handler="check_grammar",
        about="How far a text goes with a constraint, and what could come next. No generation.",
        takes=GrammarCheckRequest,
        answers={200: GrammarCheckAnswer},
        errors=_OF_A_COMPLETION,
    ),
    Operation(
        path="/tokenize",
        name="tokenize",
        handler="tokenize",
        about="The tokens of a prompt or of a conversation, which may be too long to be answered.",
        takes=TokenizeRequest,
        answers={200: TokenizeAnswer},
        errors=_OF_A_TEXT,
    ),
    Operation(
        path="/detokenize",
        name="detokenize",
        handler="detokenize",
        about="The text of tokens, special ones by their names.",
        takes=DetokenizeRequest,
        answers={200: DetokenizeAnswer},
        errors=_OF_A_TEXT,
    ),
    Operation(
        path="/v1/models",
        name="listModels",
        handler="models",
        about="The served model and its adapters.",
        answers={200: ModelList},
    ),
    Operation(
        path="/v1/models/{name:path}",
        name="getModel",
        handler="model",
        about="The served model or an adapter, by its name, in which slashes count as they are.",
        answers={200: ModelCard},
        errors=(404, 500),
        parameters=[_NAME],
    ),
    Operation(
        path="/health",
        name="getHealth",
        handler="health",
        about="Whether a round through the target works now, or others' streams make progress.",
        answers=_HEALTH,
        is_open=True,
    ),
    Operation(
        path="/readyz",
        name="getReadiness",
        handler="health",
        about="The same as /health.",
        answers=_HEALTH,
        is_open=True,
    ),
    Operation(
        path="/livez",
        name="getLiveness",
        handler="alive",
        about="This process answers; whether the engines do is what /readyz says.",
        answers={200: LiveStatus},
        is_open=True,
    ),
    Operation(
        path="/metrics",
        name="getMetrics",
        handler="metrics",
        about="Metrics in Prometheus' text format.",
        answers={200: "text/plain"},
        is_open=True,
    ),
    Operation(
        path="/version",
        name="getVersion",
        handler="version",
        about="The version of this server.",
        answers={200: VersionStatus},
        is_open=True,
    ),
    Operation(
        path="/",
        name="getPlayground",
        handler="playground",
        about="A page for people: asks the model, and shows how its answer came about.",
        answers={200: "text/html"},
        is_open=True,
    ),
    Operation(
        path="/openapi.json",
        name="getOpenApi",
        handler="openapi",
        about="This page.",
        answers={200: "application/json"},
    ),
    Operation(
        path="/docs",
        name="getDocs",
        handler="docs",
        about="This page for people.",
        answers={200: "text/html"},
        is_open=True,
    ),
)
# All other paths ask for a key, also those that no route serves.
OPEN_PATHS = PAGE_PATHS | {route.path for route in OPERATIONS if route.is_open}


class OpenApiPage:
    """The page of one server, built when it is first asked for and when the model's limits change.

    Args:
        asks_for_keys: whether the routes under /v1 need an API key.
    """

    def __init__(self, *, asks_for_keys: bool) -> None:
        self._asks_for_keys = asks_for_keys
        self._built: tuple[ServedModel, str, bytes] | None = None

    def text(self, model: ServedModel, root_path: str) -> bytes:
        """Return the page as UTF-8 JSON.

        Args:
            model: what is served.
            root_path: prefix of every path, as ASGI has it; empty: none.
        """
        built = self._built
        if built is None or built[0] is not model or built[1] != root_path:
            page = openapi_page(model, asks_for_keys=self._asks_for_keys, root_path=root_path)
            built = self._built = (model, root_path, json.dumps(page).encode())
        return built[2]


def openapi_page(model: ServedModel, *, asks_for_keys: bool, root_path: str = "") -> Schema:
    """Return the page as a JSON value; see `OpenApiPage`."""
    paths: dict[str, Any] = {}
    for route in OPERATIONS:
        described_at = route.path.replace(":path", "")
        operation = _operation(route, asks_for_keys=asks_for_keys)
        paths[described_at] = {route.method.lower(): operation}
    components: Schema = {"schemas": {**_answer_schemas(), **request_schemas(model)}}
    if asks_for_keys:
        components["securitySchemes"] = {"key": {"type": "http", "scheme": "bearer"}}
    return {
        "openapi": "3.1.0",
        "info": {"title": "Outrider", "version": own_version(), "description": _ABOUT},
        "servers": [{"url": root_path or "/"}],
        "paths": paths,
        "components": components,
    }


def _answer_schemas() -> dict[str, Schema]:
    shapes: dict[type[Shape], None] = {ErrorBody: None}  # in the order of the routes
    for route in OPERATIONS:
        shown = (*route.answers.values(), route.streams)
        shapes |= dict.fromkeys(shape for shape in shown if isinstance(shape, type))
    _, schemas = msgspec.json.schema_components(shapes, ref_template=REFS + "{name}")
    for schema in schemas.values():
        schema["description"] = cleandoc(schema["description"])
        for name, shown in schema.get("properties", {}).items():
            if "default" in shown:  # it is written like any other value
                del shown["default"]
                schema["required"].append(name)
    return schemas


def own_version() -> str:
    """Return the version of this package, as it is installed."""
    try:
        return version("outrider")
    except PackageNotFoundError:
        return "unknown"


def _operation(route: Operation, *, asks_for_keys: bool) -> Schema:
    needs_key = asks_for_keys and not route.is_open
    answers: dict[int, Schema] = {status: _error(status) for status in route.errors}
    if needs_key:
        answers[401] = _error(401)
    for status, shape in route.answers.items():
        answers[status] = _success(status, shape, route.streams)
    operation: Schema = {
        "operationId": route.name,
        "summary": route.about,
        "security": [{"key": []}] if needs_key else [],
        "parameters": [*route.parameters, _REQUEST_ID],
        "responses": {str(status): answer for status, answer in sorted(answers.items())},
    }
    if route.takes is not None:
        operation["requestBody"] = {"required": True, "content": _json_of(route.takes)}
    return operation


_REQUEST_ID: Schema = {
    "name": "x-request-id",
    "in": "header",
    "description": "Kept where it is 1 to 128 letters, digits, '.', '_', ':' or '-'.",
    "schema": {"type": "string"},
}
_HEADERS: Schema = {
    "x-request-id": {
        "description": "Under which the server's log has this request.",
        "schema": {"type": "string"},
    }
}
_SECONDS: Schema = {"schema": {"type": "string", "pattern": "^[0-9]+$"}}
_ERROR_HEADERS: Mapping[int, Schema] = {
    401: {"www-authenticate": {"schema": {"const": "Bearer"}}},
    415: {"accept-encoding": {"schema": {"const": ", ".join(ACCEPTED_ENCODINGS)}}},
    429: {"retry-after": _SECONDS},
    503: {"retry-after": _SECONDS},
}


def _success(status: int, shape: type[Shape] | str, streams: type[Shape] | None) -> Schema:
    if isinstance(shape, str):
        kind = "object" if shape == "application/json" else "string"
        content: Schema = {shape: {"schema": {"type": kind}}}
    else:
        content = _json_of(shape)
    if streams is not None:
        text = (
            f"With `stream: true`: events `data: {streams.__name__}`, in the end `data: [DONE]`. "
            "What fails after the first event ends the stream with an event `data: ErrorBody`. A "
            "line that begins with a colon is a comment, sent where nothing else is for a while."
        )
        content["text/event-stream"] = {"schema": {"type": "string", "description": text}}
    about = "As asked for." if status == 200 else "The same shape, with the reason."
    return {"description": about, "headers": _HEADERS, "content": content}


def _error(status: int) -> Schema:
    return {
        "description": _MEANINGS[status],
        "headers": {**_HEADERS, **_ERROR_HEADERS.get(status, {})},
        "content": _json_of(ErrorBody),
    }


def _json_of(shape: type[Shape] | type[BodyFields]) -> Schema:
    return {"application/json": {"schema": {"$ref": REFS + shape.__name__}}}
