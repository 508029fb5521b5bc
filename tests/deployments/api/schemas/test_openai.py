"""Requests: what is accepted, what is refused and with which words; the table of statuses."""

from __future__ import annotations

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
from tests.deployments.api.asking import chat_request, read
from tests.deployments.api.schemas.refused import BY_MEANING, BY_SHAPE, MESSAGES
from tests.fakes.http import CHAT, TEXT, served_model

MODEL = served_model()


def chat(**fields: Any) -> ChatCompletionRequest:
    return read(ChatCompletionRequest, CHAT, **fields)


def completion(**fields: Any) -> CompletionRequest:
    return read(CompletionRequest, TEXT, **fields)


def refusal(**fields: Any) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        chat_request(MODEL, **fields)
    return caught.value


def test_defaults_are_openais():
    request = chat()
    assert (request.temperature, request.top_p, request.top_k, request.seed) == (1.0, 1.0, 0, None)
    assert (request.stream, request.stop, request.max_tokens) == (False, [], None)
    assert request.speculation.enabled
    assert request.speculation.k is None


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"{", b"[1]", b'"x"', b'{"a": NaN}', b"[" * 100_000, b'{"a": "\\ud800"}'),
        *(b"\xff", b'{"a": "\xed\xa0\x80"}', '{"a": "\\ud800"}'.encode("utf-16")),
    ],
    ids=lambda body: repr(body[:9]),
)
def test_what_is_no_json_object_is_refused(body):
    with pytest.raises(InvalidRequest, match="the body") as caught:
        parse(body, ChatCompletionRequest)
    assert caught.value.code == "invalid_json"


def test_escaped_surrogate_pairs_are_text():
    body = b'{"model": "m", "prompt": "\\ud83d\\udc3b"}'
    assert parse(body, CompletionRequest).prompt == ["🐻"]


@pytest.mark.parametrize(("fields", "param", "message"), [*BY_SHAPE, *BY_MEANING])
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
