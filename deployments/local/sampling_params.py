"""Sampling parameters of the Python API: the fields of an HTTP request, checked by its schema.

There is no list of parameters here and no rule of its own. `SamplingParams` takes the fields of a
request body, with the same refusals. The prompt and the delivery of the answer are not among them.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

from deployments.api.bodies import parse
from deployments.api.schemas.requests import (
    ChatCompletionRequest,
    CompletionRequest,
    GenerationFields,
)
from deployments.api.schemas.strict_fields import wrong_field

_Body = TypeVar("_Body", bound=GenerationFields)
_NOT_SAMPLING = frozenset(
    {"model", "prompt", "echo", "stream", "stream_options", "resume_token_ids"}
)
_NAMES = tuple(name for name in CompletionRequest.model_fields if name not in _NOT_SAMPLING)


class SamplingParams:
    """The way answers are sampled: the fields of POST /v1/completions but prompt, echo and stream.

    `structured_outputs={"json": Model}` may name a pydantic class in place of its schema.

    Raises:
        InvalidRequest: an unknown field, a wrong type, a value out of range; it names the field.
    """

    # Made of the schema, so that `help` and completion in notebooks show the fields.
    __signature__ = inspect.Signature(
        [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=CompletionRequest.model_fields[name].get_default(call_default_factory=True),
            )
            for name in _NAMES
        ]
    )

    def __init__(self, **fields: Any) -> None:
        _refuse_delivery(fields)
        self._fields = dict(fields)
        self.completion("", [0])  # refuses now what any request with these fields is refused for

    def __repr__(self) -> str:
        """Show the fields that were given."""
        return f"SamplingParams({', '.join(f'{k}={v!r}' for k, v in self._fields.items())})"

    def completion(self, model: str, prompt: str | Sequence[int]) -> CompletionRequest:
        """Return the body of POST /v1/completions for a raw prompt, or for its token ids.

        Raises:
            InvalidRequest: as the route would.
        """
        return _parsed({**self._fields, "model": model, "prompt": prompt}, CompletionRequest)

    def chat(
        self, model: str, messages: Sequence[Mapping[str, Any]], more: Mapping[str, Any]
    ) -> ChatCompletionRequest:
        """Return the body of POST /v1/chat/completions for a conversation.

        Args:
            model: its name.
            messages: the conversation.
            more: further fields of that route.

        Raises:
            InvalidRequest: as the route would.
        """
        _refuse_delivery(more)
        fields = {**self._fields, **more, "model": model, "messages": messages}
        num_logprobs = None if "logprobs" in more else self._fields.get("logprobs")
        if type(num_logprobs) is int:  # the text route's; the chat route has a bool
            fields |= {"logprobs": True, "top_logprobs": num_logprobs}
        return _parsed(fields, ChatCompletionRequest)


def _refuse_delivery(fields: Mapping[str, Any]) -> None:
    for name in fields:
        if name in _NOT_SAMPLING:
            raise wrong_field(name, "is no sampling parameter")


def _parsed(fields: Mapping[str, Any], schema: type[_Body]) -> _Body:
    members = [f"{json.dumps(name)}:{_as_json(name, value)}" for name, value in fields.items()]
    body = parse(f"{{{','.join(members)}}}".encode(), schema)
    if body.speculation.details:
        raise wrong_field(
            "speculation.details", "must be false here, only the HTTP API shows rounds (got true)"
        )
    return body


def _as_json(name: str, value: object) -> str:
    try:
        text = json.dumps(value, allow_nan=False, default=_schema_of, ensure_ascii=False)
        text.encode()  # a lone surrogate is no text
    except (TypeError, ValueError, RecursionError) as error:
        raise wrong_field(name, f"{error}") from None
    return text


def _schema_of(value: object) -> object:
    """Return a JSON value for one that JSON does not have.

    It is the schema of a pydantic class.
    """
    if isinstance(value, type) and hasattr(value, "model_json_schema"):
        return value.model_json_schema()
    raise TypeError(f"must be a value that JSON has, got {type(value).__name__}")
