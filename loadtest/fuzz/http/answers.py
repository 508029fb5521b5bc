"""Checks of every HTTP answer: OpenAI's shapes for successes and for errors, nothing else.

The shapes are written here a second time, from OpenAI's reference. So they do not follow the
server's own when those change.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import jsonschema

from loadtest.fuzz.http.attacks import Attack

OVERLOAD = frozenset({503, 504})  # said on purpose
_BESIDE = {"tools": "tool_choice"}  # fields that are refused without the other
_ERROR = {
    "type": "object",
    "required": ["error"],
    "properties": {
        "error": {
            "type": "object",
            "required": ["message", "type", "param", "code"],
            "properties": {
                "message": {"type": "string", "minLength": 1},
                "type": {"type": "string", "minLength": 1},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
        }
    },
}
_USAGE = {
    "type": "object",
    "required": ["prompt_tokens", "completion_tokens", "total_tokens"],
    "additionalProperties": True,
}
_END = {"enum": ["stop", "length"]}
_CHAT_END = {"enum": ["stop", "length", "tool_calls"]}
_HEAD = {
    "id": {"type": "string", "minLength": 1},
    "created": {"type": "integer", "minimum": 1},
    "model": {"const": "fuzz"},
}


def _answer(kind: str, choice: dict[str, Any], *, needs_usage: bool) -> dict[str, Any]:
    required = [*_HEAD, "object", "choices"] + ["usage"] * needs_usage
    usage: dict[str, Any] = _USAGE if needs_usage else {"anyOf": [_USAGE, {"type": "null"}]}
    choice = {"type": "object", "required": list(choice), "properties": choice}
    return {
        "type": "object",
        "required": required,
        "properties": _HEAD
        | {"object": {"const": kind}, "usage": usage}
        | {"choices": {"type": "array", "items": choice}},
    }


_INDEX = {"type": "integer", "minimum": 0}
_OPEN_END = {"enum": ["stop", "length", None]}
_OPEN_CHAT_END = {"enum": [*_CHAT_END["enum"], None]}
_TEXT = {"type": "string"}
_FUNCTION = {
    "type": "object",
    "required": ["name", "arguments"],
    "properties": {"name": {"type": "string", "minLength": 1}, "arguments": _TEXT},
}
_CALL = {
    "type": "object",
    "required": ["id", "type", "function"],
    "properties": {
        "id": {"type": "string", "minLength": 1},
        "type": {"const": "function"},
        "function": _FUNCTION,
    },
}
_MESSAGE = {
    "type": "object",
    "required": ["role", "content"],
    "properties": {
        "role": {"const": "assistant"},
        "content": {"type": ["string", "null"]},
        "tool_calls": {"type": "array", "items": _CALL, "minItems": 1},
    },
    "if": {"properties": {"content": {"const": None}}},
    "then": {"required": ["tool_calls"]},
}
_PART = {  # part of a call: its beginning, or further arguments
    "type": "object",
    "required": ["index", "function"],
    "properties": {"index": _INDEX, "function": {"required": ["arguments"]}},
}
_DELTA = {
    "type": "object",
    "properties": {
        "content": {"type": ["string", "null"]},
        "role": {"const": "assistant"},
        "tool_calls": {"type": "array", "items": _PART, "minItems": 1},
    },
}
_SHAPES: dict[tuple[str, bool], dict[str, Any]] = {
    ("/v1/chat/completions", False): _answer(
        "chat.completion",
        {"index": _INDEX, "message": _MESSAGE, "finish_reason": _CHAT_END},
        needs_usage=True,
    ),
    ("/v1/chat/completions", True): _answer(
        "chat.completion.chunk",
        {"index": _INDEX, "delta": _DELTA, "finish_reason": _OPEN_CHAT_END},
        needs_usage=False,
    ),
    ("/v1/completions", False): _answer(
        "text_completion",
        {"index": _INDEX, "text": _TEXT, "finish_reason": _END},
        needs_usage=True,
    ),
    ("/v1/completions", True): _answer(
        "text_completion",
        {"index": _INDEX, "text": _TEXT, "finish_reason": _OPEN_END},
        needs_usage=False,
    ),
}
_VALIDATORS = {key: jsonschema.Draft202012Validator(shape) for key, shape in _SHAPES.items()}
_ERROR_VALIDATOR = jsonschema.Draft202012Validator(_ERROR)


@dataclass(slots=True)
class HttpAnswer:
    """An HTTP answer; status 0 means that the client left before."""

    status: int
    headers: dict[str, str]
    body: bytes


def is_openai_error(body: bytes) -> bool:
    """Return whether a body is an error as OpenAI writes it."""
    try:
        return bool(_ERROR_VALIDATOR.is_valid(json.loads(body)))
    except ValueError:
        return False


def wrong_with(attack: Attack, answer: HttpAnswer) -> list[str]:
    """Return the faults of the answer to an attack."""
    if answer.status == 0:
        return [] if attack.leaves_after_s is not None else ["no answer"]
    if answer.status >= 500 and answer.status not in OVERLOAD:
        return [f"status {answer.status}: {answer.body[:300]!r}"]
    if "x-request-id" not in answer.headers:
        return [f"status {answer.status} without an x-request-id"]
    if answer.status >= 400:
        return _wrong_error(attack, answer)
    is_completion = attack.method == "POST" and bool(attack.body)
    return _wrong_success(attack, answer) if is_completion else []


def _wrong_error(attack: Attack, answer: HttpAnswer) -> list[str]:
    if attack.is_valid and answer.status not in (429, *OVERLOAD):
        return [f"a valid request was refused: {answer.status} {answer.body[:300]!r}"]
    if attack.method == "HEAD":
        return []
    try:
        content = json.loads(answer.body)
        _ERROR_VALIDATOR.validate(content)
    except (ValueError, jsonschema.ValidationError) as error:
        return [f"status {answer.status} is no OpenAI error: {error}: {answer.body[:300]!r}"]
    detail = content["error"]
    blamed = attack.blamed.encode("utf-8", "replace").decode()
    is_of_field = answer.status in (400, 404) and detail["code"] != "invalid_json"
    named = f"{detail['message']} {detail['param']}"
    if is_of_field and blamed not in named and _BESIDE.get(blamed, blamed) not in named:
        return [f"the refusal does not name {blamed!r}: {detail}"]
    return []


def _wrong_success(attack: Attack, answer: HttpAnswer) -> list[str]:
    is_stream = answer.headers.get("content-type", "").startswith("text/event-stream")
    validator = _VALIDATORS[attack.path, is_stream]
    try:
        contents = events_of(answer.body) if is_stream else [json.loads(answer.body)]
    except ValueError as error:
        if attack.leaves_after_s is not None:
            return []
        return [f"not what was announced: {error}: {answer.body[-300:]!r}"]
    complaints = []
    for content in contents:
        if is_stream and "error" in content:
            return [f"the stream broke: {content}"]
        complaints += [
            f"status {answer.status}: {error.json_path}: {error.message}: {str(content)[:300]}"
            for error in validator.iter_errors(content)
        ]
    if attack.is_valid and not complaints and attack.leaves_after_s is None:
        complaints += _wrong_numbers(attack.body, contents, is_stream=is_stream)
        if attack.body.get("tools") and not is_stream:
            complaints += _wrong_calls(attack.body, contents[0])
    return complaints


def _wrong_calls(body: dict[str, Any], content: Any) -> list[str]:
    """Return the faults of calls that came to their end."""
    tools = {tool["function"]["name"]: tool["function"] for tool in body["tools"]}
    complaints = []
    for choice in content["choices"]:
        calls = choice["message"].get("tool_calls", [])
        if (choice["finish_reason"] == "tool_calls") > bool(calls):
            complaints.append("finish reason tool_calls without a call")
        if calls and body["tool_choice"] == "none":
            complaints.append("a call, although none was allowed")
        # A stop string may cut a call off, as max_tokens does.
        is_whole = choice["finish_reason"] == "tool_calls" and not body.get("stop")
        for call in calls if is_whole and not body.get("stop_token_ids") else ():
            function = call["function"]
            try:
                schema = tools[function["name"]]["parameters"]
                jsonschema.Draft202012Validator(schema).validate(json.loads(function["arguments"]))
            except (KeyError, ValueError, jsonschema.ValidationError) as error:
                complaints.append(f"call {function}: {str(error).splitlines()[0]}")
    return complaints


def events_of(body: bytes) -> list[Any]:
    """Return the events of a whole stream, comments left out.

    Raises:
        ValueError: it is no whole stream, or an event is no JSON.
    """
    blocks = body.decode().split("\n\n")
    # An id may follow the data.
    lines = [one.partition("\nid: ")[0] for one in blocks if one and not one.startswith(":")]
    if not lines or lines[-1] != "data: [DONE]" or blocks[-1]:
        raise ValueError("the stream does not end with [DONE]")
    if wrong := [line for line in lines if not line.startswith("data: ")]:
        raise ValueError(f"no event: {wrong[0][:80]!r}")
    return [json.loads(line.removeprefix("data: ")) for line in lines[:-1]]


def _wrong_numbers(body: dict[str, Any], contents: list[Any], *, is_stream: bool) -> list[str]:
    num_choices = body.get("n", 1)
    complaints = []
    ends = [c["index"] for content in contents for c in content["choices"] if c["finish_reason"]]
    if sorted(ends) != list(range(num_choices)):
        complaints.append(f"ends of choices {sorted(ends)}, {num_choices} were asked for")
    for usage in (content.get("usage") for content in contents):
        if not usage:
            continue
        if usage["total_tokens"] != usage["prompt_tokens"] + usage["completion_tokens"]:
            complaints.append(f"usage does not add up: {usage}")
        if not num_choices <= usage["completion_tokens"] <= num_choices * body["max_tokens"]:
            complaints.append(f"usage is not within max_tokens {body['max_tokens']}: {usage}")
    if not is_stream and "seed" in body and contents[0].get("seed") != body["seed"] % 2**64:
        complaints.append(f"seed {contents[0].get('seed')}, asked for {body['seed']}")
    return complaints
