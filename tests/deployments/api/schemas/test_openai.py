"""Requests: what is accepted, what is refused and with which words; the table of statuses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from deployments.api.bodies import parse
from deployments.api.schemas.requests import (
    BodyTooLarge,
    ChatCompletionRequest,
    CompletionRequest,
    RouteError,
    answer_error,
)
from models.protocol.errors import (
    ConstraintViolation,
    ContextTooLong,
    DeadlineExceeded,
    InternalError,
    InvalidRequest,
    LinkLost,
    MaskUnavailable,
    Overloaded,
    ServingError,
    Unavailable,
    UnknownModel,
    UnsupportedGrammar,
)

MESSAGES = [{"role": "user", "content": "hi"}]


def chat(**fields: Any) -> ChatCompletionRequest:
    body = {"model": "tiny", "messages": MESSAGES} | fields
    return parse(_json(body), ChatCompletionRequest)


def _json(body: dict[str, Any]) -> bytes:
    # JSON has no infinity, but a number that is too large reads as one.
    return json.dumps(body).replace("Infinity", "1e999").encode()


def completion(**fields: Any) -> CompletionRequest:
    return parse(json.dumps({"model": "tiny", "prompt": "hi"} | fields).encode(), CompletionRequest)


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        chat(**fields)
    return caught.value


def test_defaults_are_openais():
    request = chat()
    assert (request.temperature, request.top_p, request.top_k, request.seed) == (1.0, 1.0, 0, None)
    assert (request.stream, request.stop, request.max_tokens) == (False, [], None)
    assert request.speculation.enabled
    assert request.speculation.k is None


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[1]", b'"x"', b"\xff", b'{"a": NaN}', b"[" * 100_000, b'{"a": "\\ud800"}'],
    ids=["empty", "open", "list", "string", "not-utf8", "nan", "deep", "surrogate"],
)
def test_what_is_no_json_object_is_refused(body):
    with pytest.raises(InvalidRequest, match="the body") as caught:
        parse(body, ChatCompletionRequest)
    assert caught.value.code == "invalid_json"


def test_escaped_surrogate_pairs_are_text():
    body = b'{"model": "m", "prompt": "\\ud83d\\udc3b"}'
    assert parse(body, CompletionRequest).prompt == ["🐻"]


@pytest.mark.parametrize(
    ("fields", "param", "message"),
    [
        ({"temperature": 2.5}, "temperature", "less than or equal to 2 (got 2.5)"),
        ({"temperature": -1}, "temperature", "greater than or equal to 0 (got -1)"),
        ({"temperature": "1"}, "temperature", 'got "1"'),
        ({"top_p": 0}, "top_p", "greater than 0 (got 0)"),
        ({"top_p": 1.5}, "top_p", "less than or equal to 1 (got 1.5)"),
        ({"top_k": -2}, "top_k", "greater than or equal to -1 (got -2)"),
        ({"max_tokens": -1}, "max_tokens", "greater than or equal to 0 (got -1)"),
        ({"max_tokens": True}, "max_tokens", "got true"),
        ({"seed": 2**64}, "seed", str(2**64)),
        ({"seed": 1.5}, "seed", "integer"),
        ({"stop": ["a", ""]}, "stop", "must not be empty"),
        ({"stop": 3}, "stop", "string or a list of strings"),
        ({"stream": "yes"}, "stream", 'got "yes"'),
        ({"messages": []}, "messages", "at least 1"),
        ({"messages": "hi"}, "messages", "list"),
        ({"messages": None}, "messages", "is required"),
        ({"model": None}, "model", "is required"),
        ({"messages": [{"role": "human", "content": "x"}]}, "messages[0].role", '"human"'),
        ({"messages": [{"content": "x"}]}, "messages[0].role", "is required"),
        ({"messages": [{"role": "user"}]}, "messages[0].content", "is required"),
        ({"messages": [{"role": "user", "content": None}]}, "messages[0].content", "must be"),
        ({"messages": [*MESSAGES, {"role": "user", "content": 3}]}, "messages[1].content", "must"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
            "messages[0].content",
            "part 0: type 'image_url' is not supported",
        ),
        ({"speculation": {"k": -1}}, "speculation.k", "greater than or equal to 0 (got -1)"),
        ({"speculation": {"depth": 1}}, "speculation.depth", "unknown field"),
        ({"speculation": 3}, "speculation", "got 3"),
        ({"response_format": {"type": "xml"}}, "response_format.type", '"xml"'),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x"}}},
            "response_format.json_schema.schema",
            "is required",
        ),
        (
            {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": 1}}},
            "response_format.json_schema.schema",
            "got 1",
        ),
        ({"structured_outputs": {"json": "{"}}, "structured_outputs.json", "not valid JSON"),
        ({"structured_outputs": {"json": True}}, "structured_outputs.json", "got true"),
        ({"structured_outputs": {"regex": ""}}, "structured_outputs.regex", "at least 1 character"),
        ({"structured_outputs": {"regex": 3}}, "structured_outputs.regex", "got 3"),
        ({"structured_outputs": {"choice": []}}, "structured_outputs.choice", "at least 1 item"),
        ({"structured_outputs": {"choice": ["a", 1]}}, "structured_outputs.choice[1]", "got 1"),
        ({"structured_outputs": {"grammar": ""}}, "structured_outputs.grammar", "at least 1"),
        ({"structured_outputs": {"grammar": 3}}, "structured_outputs.grammar", "got 3"),
        (
            {"structured_outputs": {"structural_tag": 3}},
            "structured_outputs.structural_tag",
            "got 3",
        ),
        ({"structured_outputs": {"rgx": "x"}}, "structured_outputs.rgx", "unknown field"),
        ({"min_p": 1.5}, "min_p", "less than or equal to 1 (got 1.5)"),
        ({"min_p": -0.1}, "min_p", "greater than or equal to 0 (got -0.1)"),
        ({"presence_penalty": 2.1}, "presence_penalty", "less than or equal to 2 (got 2.1)"),
        ({"frequency_penalty": -3}, "frequency_penalty", "greater than or equal to -2 (got -3)"),
        ({"repetition_penalty": 0}, "repetition_penalty", "greater than or equal to 0.001 (got 0)"),
        ({"repetition_penalty": 1e999}, "repetition_penalty", "less than or equal to 1000"),
        ({"speculation": {"verification": "typical"}}, "speculation.verification", '"typical"'),
        ({"speculation": {"drafter": "Medusa"}}, "speculation.drafter", '(got "Medusa")'),
        ({"n": 0}, "n", "greater than or equal to 1 (got 0)"),
        ({"best_of": 2}, "best_of", "2 is not supported"),
        ({"logit_bias": [5]}, "logit_bias", "must be an object"),
        ({"logit_bias": {"the": 1}}, "logit_bias", "keys must be token ids (got 'the')"),
        ({"logit_bias": {"-1": 1}}, "logit_bias", "keys must be token ids (got '-1')"),
        ({"logit_bias": {"5": 100.5}}, "logit_bias", "within -100..100 (got 100.5)"),
        ({"logit_bias": {"5": -101}}, "logit_bias", "within -100..100 (got -101)"),
        ({"logit_bias": {"5": 1e999}}, "logit_bias", "must be a number (got inf)"),
        ({"logit_bias": {"5": True}}, "logit_bias", "must be a number (got True)"),
        (
            {"logit_bias": {str(token): 1 for token in range(301)}},
            "logit_bias",
            "at most 300 entries are allowed (got 301)",
        ),
        ({"min_tokens": -1}, "min_tokens", "greater than or equal to 0 (got -1)"),
        ({"bad_words": "word"}, "bad_words", "must be a list of strings"),
        ({"bad_words": ["a", " "]}, "bad_words", "must not be empty"),
        ({"bad_words": ["a"] * 257}, "bad_words", "at most 256 words are allowed (got 257)"),
        ({"bad_words": ["a" * 300]}, "bad_words", "at most 256 characters each (got 300)"),
        ({"stop_token_ids": [1, "2"]}, "stop_token_ids", "must be a list of token ids"),
        ({"stop_token_ids": [1] * 129}, "stop_token_ids", "at most 128 ids are allowed (got 129)"),
        ({"logprobs": 1}, "logprobs", "got 1"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "less than or equal to 20"),
        ({"prompt_logprobs": -1}, "prompt_logprobs", "greater than or equal to 0 (got -1)"),
        ({"echo": True}, "echo", "true is not supported"),
        ({"tools": [{"type": "function"}]}, "tools[0].function", "is required"),
        ({"temprature": 1}, "temprature", "unknown field"),
    ],
)
def test_refusals_name_field_limit_and_value(fields, param, message):
    error = refusal(**fields)
    assert error.param == param
    assert param in error.message
    assert message in error.message


def test_several_faults_are_told_together_and_long_values_are_cut():
    error = refusal(temperature=9, top_p=9, foo=1, bar=1, seed="s" * 500)
    assert "temperature" in error.message
    assert "and 2 more" in error.message
    assert len(error.message) < 600


@pytest.mark.parametrize(
    "fields",
    [
        {"user": "u", "metadata": {"a": "b"}, "store": True, "service_tier": "auto"},
        {"n": 1, "frequency_penalty": 0, "presence_penalty": 0.0, "logit_bias": {}},
        {"logprobs": False, "tools": [], "tool_choice": "auto", "min_p": 0.0},
        {"temperature": None, "stop": None, "speculation": None, "tools": None, "anything": None},
    ],
    ids=["metadata", "neutral", "neutral-too", "null"],
)
def test_what_asks_for_nothing_is_accepted(fields):
    assert chat(**fields) == chat()


def test_logprobs_of_a_completion_are_a_number_or_off():
    assert completion(logprobs=0).logprobs == 0  # of the token alone, and not false
    assert completion(logprobs=False).logprobs is None
    for value, message in ((21, "less than or equal to 20"), (True, "got true")):
        with pytest.raises(InvalidRequest, match=message) as caught:
            completion(logprobs=value)
        assert caught.value.param == "logprobs"
    with pytest.raises(InvalidRequest, match="top_logprobs"):
        completion(logprobs=1, top_logprobs=1)


def test_logit_bias_is_read_as_pairs():
    assert chat(logit_bias={"7": -100, "12": 0.5}).logit_bias == [(7, -100.0), (12, 0.5)]


def test_an_answers_message_may_be_sent_back_with_its_empty_fields():
    sent_back: dict[str, Any] = {
        "role": "assistant",
        "content": "x",
        "refusal": None,
        "tool_calls": [],
    }
    assert chat(messages=[*MESSAGES, sent_back]).messages[1].content == "x"


def test_text_parts_are_joined():
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    assert chat(messages=[{"role": "user", "content": parts}]).messages[0].content == "a\nb"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ["a"]),
        ([1, 2], [[1, 2]]),
        (["a"], ["a"]),
        ([[1, 2]], [[1, 2]]),
        ("", [""]),
        (["a", "b"], ["a", "b"]),
        ([[1], [2, 3]], [[1], [2, 3]]),
    ],
)
def test_prompts_are_strings_or_token_ids(prompt, expected):
    assert completion(prompt=prompt).prompt == expected


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (["a", [1]], "prompt 1: must be of the same kind"),
        (["a", 1], "prompt 1: must be of the same kind"),
        ([[1], []], "prompt 1: must be a string or a non-empty list of token ids"),
        ([[[1]]], "string or a non-empty list of token ids"),
        ([], "non-empty"),
        ([1, "a"], "string or a non-empty list of token ids"),
        ([True], "token ids"),
        ({"a": 1}, "token ids"),
    ],
)
def test_other_prompts_are_refused(prompt, message):
    with pytest.raises(InvalidRequest, match=message) as caught:
        completion(prompt=prompt)
    assert caught.value.param == "prompt"


@pytest.mark.parametrize("schema", [{"type": "object"}, '{"type": "object"}'], ids=["dict", "text"])
def test_structured_outputs_json_is_a_schema_or_its_text(schema):
    outputs = chat(structured_outputs={"json": schema, "regex": None}).structured_outputs
    assert outputs is not None
    assert outputs.json_ == {"type": "object"}


@pytest.mark.parametrize(
    ("error", "status", "kind"),
    [
        (InvalidRequest("m"), 400, "invalid_request_error"),
        (ContextTooLong("m"), 400, "invalid_request_error"),
        (UnsupportedGrammar("m"), 400, "invalid_request_error"),
        (UnknownModel("m"), 404, "invalid_request_error"),
        (RouteError("m", status=404), 404, "invalid_request_error"),
        (RouteError("m", status=405), 405, "invalid_request_error"),
        (BodyTooLarge("m"), 413, "invalid_request_error"),
        (Overloaded("m"), 429, "rate_limit_error"),
        (Unavailable("m"), 503, "service_unavailable_error"),
        (LinkLost("m"), 503, "service_unavailable_error"),
        (MaskUnavailable("m"), 503, "service_unavailable_error"),
        (DeadlineExceeded("m"), 504, "timeout_error"),
        (ConstraintViolation("m"), 500, "server_error"),
        (InternalError("m"), 500, "server_error"),
        (ServingError("m"), 500, "server_error"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_every_error_has_its_status(error, status, kind):
    answer = answer_error(error, "req-1")
    assert (answer.status, answer.body.error.type) == (status, kind)
    assert answer.body.error.code == error.code


def test_retry_after_is_whole_seconds_and_at_least_one():
    assert answer_error(Overloaded("m", retry_after_s=0.2), "r").headers["retry-after"] == "1"
    assert answer_error(Overloaded("m", retry_after_s=7), "r").headers["retry-after"] == "7"
    gone = Unavailable("m")
    assert answer_error(gone, "r").headers["retry-after"] == "1"
    gone.retry_after_s = 41.6
    assert answer_error(gone, "r").headers["retry-after"] == "42"


def test_our_own_faults_say_only_the_request_id():
    error = InternalError("tensor at 0x7f of rank 3 is broken")
    message = answer_error(error, "req-42").body.error.message
    assert "req-42" in message
    assert "tensor" not in message


@pytest.mark.parametrize(
    ("name", "successor"),
    [
        ("guided_json", "structured_outputs.json"),
        ("guided_regex", "structured_outputs.regex"),
        ("guided_choice", "structured_outputs.choice"),
        ("guided_grammar", "structured_outputs.grammar"),
        ("guided_decoding_backend", "structured_outputs"),
        ("guided_whitespace_pattern", "structured_outputs.whitespace_pattern"),
    ],
)
def test_former_fields_name_their_successors(name, successor):
    error = refusal(**{name: "x"})
    assert (error.param, error.code) == (name, "unsupported_parameter")
    assert error.message.startswith(f"{name}: ")
    assert successor in error.message
    assert chat(**{name: None}).structured_outputs is None
