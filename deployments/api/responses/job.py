"""Makes a body of POST /v1/responses a job: it is a chat, asked for and answered in other words.

A refusal of the chat names the chat's fields. They get the names that the client wrote here.
"""

from __future__ import annotations

import logging
import re
import uuid
from typing import Any

from pydantic import ValidationError

from deployments.api.bodies import raise_invalid
from deployments.api.jobs import (
    Job,
    answer_head,
    check_logprob_entries,
    seal_of,
    with_details,
)
from deployments.api.requests import ServedModel, prepare_turn
from deployments.api.responses.shapes import LOGPROBS, ResponsesRequest
from deployments.api.responses.truncation import prepare_truncated
from deployments.api.responses.writer import ResponsesWriter, encode_named_events
from deployments.api.schemas.requests import ChatCompletionRequest, SharedFields
from deployments.api.schemas.sampling_defaults import with_defaults
from deployments.api.schemas.strict_fields import wrong_field
from deployments.api.schemas.tool_fields import Choice, mode_and_names
from deployments.api.writing.resuming import Begun
from models.protocol.errors import InvalidRequest, ServingError

# Fields of a chat in a refusal, and what they are called here.
_RENAMED = (
    (re.compile(r"\bresponse_format\.json_schema\b"), "text.format"),
    (re.compile(r"\bresponse_format\b"), "text.format"),
    (re.compile(r"\bmax_(?:completion_)?tokens\b"), "max_output_tokens"),
    (
        re.compile(r"\btool_choice\.allowed_tools\.tools\[(\d+)\]\.function\b"),
        r"tool_choice.tools[\1]",
    ),
    (re.compile(r"\btools\[(\d+)\]\.function\b"), r"tools[\1]"),
    (re.compile(r"\btool_choice\.function\b"), "tool_choice"),
    (re.compile(r"^logprobs(?=:|$)"), "include"),
    (re.compile(r"\bmessages\[\d+\](?:\.\w+|\[\d+\])*"), "input"),
    (re.compile(r"\bmessages\b"), "input"),
)
# Fields of a chat by the same name.
_SHARED = {*SharedFields.model_fields, "parallel_tool_calls", "chat_template_kwargs"} - {"stream"}
_TOOL = re.compile(r"\btools\[(\d+)\]")

logger = logging.getLogger("ray.serve")


def responses_job(asked: ResponsesRequest, model: ServedModel, begun: Begun | None = None) -> Job:
    """Return the job of POST /v1/responses, or raise its refusal.

    Its events are numbered, and where they begin depends on the rounds: no stream goes on.
    """
    if begun is not None:
        raise wrong_field(
            "Last-Event-ID", "/v1/responses does not go on with a stream; /v1/chat/completions does"
        )
    asked = with_defaults(asked, model.sampling)
    request_id = f"resp_{uuid.uuid4().hex}"
    try:
        chat = _as_chat(asked)
        prepare = prepare_truncated if asked.truncation == "auto" else prepare_turn
        prompt, turn = prepare(chat, model, request_id)
        check_logprob_entries(chat, [prompt], model.max_logprob_entries)
    except ServingError as error:
        error.message = placed(named(error.message), asked)
        error.param = None if error.param is None else placed(named(error.param), asked)
        raise
    if asked.other_tools:
        kinds = ", ".join(kind for _, kind in asked.other_tools)
        logger.info("%s: tools are left out, only functions are served: %s", request_id, kinds)
    writer = ResponsesWriter(answer_head(chat, [prompt], model), asked, turn.turn)
    return Job(
        [prompt],
        with_details(writer, asked),
        asked.stream,
        continues_prompt=False,
        grammar_fields=tuple(placed(named(field), asked) for field in turn.fields),
        sealed=seal_of(asked),
        shown_ids=turn.shown_ids,
        encode=encode_named_events,
        done=b"",
        failed=writer.failed,
    )


def named(text: str) -> str:
    """Rename a chat's fields in a message or path to their names here."""
    for pattern, name in _RENAMED:
        text = pattern.sub(name, text)
    return text


def placed(text: str, asked: ResponsesRequest) -> str:
    """Replace places of tools in a message or path by those in the body.

    The body may have tools of other kinds between them.
    """
    others = {index for index, _ in asked.other_tools}
    places = [i for i in range(len(asked.tools) + len(others)) if i not in others]

    def place(found: re.Match[str]) -> str:
        index = int(found[1])
        return f"tools[{places[index] if index < len(places) else index}]"

    return _TOOL.sub(place, text) if others else text


def _as_chat(asked: ResponsesRequest) -> ChatCompletionRequest:
    if asked.top_logprobs and not asked.include:
        raise InvalidRequest(
            f"top_logprobs is only allowed with include: [{LOGPROBS!r}]", param="top_logprobs"
        )
    messages = list(asked.input)
    if asked.instructions is not None:
        messages.insert(0, {"role": "system", "content": asked.instructions})
    options = asked.stream_options
    if options is not None and options.include_obfuscation and not asked.stream:
        raise InvalidRequest(
            "stream_options is only allowed with stream: true", param="stream_options"
        )
    fields: dict[str, Any] = {name: getattr(asked, name) for name in _SHARED}
    fields |= {
        "messages": messages,
        "max_completion_tokens": asked.max_output_tokens,
        "response_format": _format(asked),
        "tools": [_tool(tool.model_dump(exclude={"type"})) for tool in asked.tools],
        "tool_choice": _chat_choice(asked.tool_choice),
        "logprobs": bool(asked.include),
        "top_logprobs": asked.top_logprobs if asked.include else None,
        "logit_bias": {str(token_id): bias for token_id, bias in asked.logit_bias},
        "reasoning_effort": asked.reasoning.effort,
        "verbosity": asked.text.verbosity,
    }
    try:
        return ChatCompletionRequest.model_validate(fields)
    except ValidationError as error:
        raise_invalid(error)


def _chat_choice(choice: Choice) -> object:
    mode, names = mode_and_names(choice)
    if not names:
        return mode
    tools = [_tool({"name": name}) for name in names]
    if not mode:
        return tools[0]
    return {"type": "allowed_tools", "allowed_tools": {"mode": mode, "tools": tools}}


def _tool(function: dict[str, Any]) -> dict[str, Any]:
    return {"type": "function", "function": function}


def _format(asked: ResponsesRequest) -> dict[str, Any] | None:
    form = asked.text.format
    if form.type != "json_schema":
        if form.schema_ is not None:
            raise wrong_field("text.format.schema", "is only allowed with type 'json_schema'")
        return None if form.type == "text" else {"type": form.type}
    for name, value in (("name", form.name), ("schema", form.schema_)):
        if value is None:
            raise wrong_field(f"text.format.{name}", "is required with type 'json_schema'")
    schema = {"name": form.name, "schema": form.schema_}
    return {"type": "json_schema", "json_schema": schema}
