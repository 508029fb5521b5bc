"""Every field that OpenAI documents, by the installed `openai` package, is honoured or refused."""

from __future__ import annotations

import typing

import pytest
from openai.types import completion_create_params as text_params
from openai.types.chat import completion_create_params as chat_params
from openai.types.responses import response_create_params as responses_params

from deployments.api.bodies import parse
from deployments.api.responses.shapes import ResponsesRequest
from deployments.api.schemas.requests import ChatCompletionRequest, CompletionRequest
from deployments.api.schemas.strict_fields import BodyFields
from models.protocol.errors import InvalidRequest

BODIES: dict[str, tuple[type[BodyFields], typing.Any, bytes]] = {
    "chat": (
        ChatCompletionRequest,
        chat_params.CompletionCreateParamsStreaming,
        b'"model":"m","messages":[{"role":"user","content":"hi"}]',
    ),
    "text": (
        CompletionRequest,
        text_params.CompletionCreateParamsStreaming,
        b'"model":"m","prompt":"hi"',
    ),
    "responses": (
        ResponsesRequest,
        responses_params.ResponseCreateParamsStreaming,
        b'"model":"m","input":"hi"',
    ),
}
# Served values of fields that have one, and what makes their values ask for something.
FIELDS = [
    (name, field)
    for name, (_, documented, _) in BODIES.items()
    for field in sorted(typing.get_type_hints(documented))
]


def test_the_package_documents_what_was_looked_at():
    assert len(FIELDS) > 80
    assert ("chat", "prediction") in FIELDS
    assert ("text", "best_of") in FIELDS
    assert ("responses", "previous_response_id") in FIELDS


@pytest.mark.parametrize(("route", "field"), FIELDS)
def test_a_documented_field_is_known_by_name(route, field):
    shape = BODIES[route][0]
    kinds = [field in shape.model_fields, field in shape.ignored, field in shape.neutral]
    assert any(kinds), f"{field} is neither honoured, nor ignored on purpose, nor refused by name"


@pytest.mark.parametrize(("route", "field"), FIELDS)
def test_a_field_that_is_not_served_is_refused_by_name_and_null_never_is(route, field):
    shape, _, required = BODIES[route]
    if f'"{field}"'.encode() in required:
        return
    parse(b"{%s,%s:null}" % (required, f'"{field}"'.encode()), shape)
    if field in shape.model_fields or field in shape.ignored:
        return
    with pytest.raises(InvalidRequest) as refused:
        parse(b'{%s,%s:"something"}' % (required, f'"{field}"'.encode()), shape)
    assert refused.value.param == field
    assert refused.value.code == "unsupported_parameter"
