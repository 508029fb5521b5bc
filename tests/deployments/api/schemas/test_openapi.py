"""The OpenAPI page: valid, complete, and of one opinion with what the routes accept and answer."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import jsonschema
import openapi_spec_validator
import pytest
from starlette.routing import Route

from deployments.api.http import create_app
from deployments.api.schemas.openapi import OPEN_PATHS, OpenApiPage, openapi_page
from models.protocol.errors import ServingError
from tests.deployments.api.asking import chat_request, text_request
from tests.deployments.api.schemas.refused import BY_SHAPE
from tests.fakes.http import BODIES, CHAT, TEXT, ScriptedGenerator, http_service, served_model
from tests.harness.http_clients import client_of

MODEL = served_model()
PAGE = openapi_page(MODEL, asks_for_keys=True)
SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}


def schema_at(*path: str) -> dict[str, Any]:
    """A schema of the page that can be used alone."""
    found = PAGE["paths"]
    for part in path:
        found = found[part]
    return {**found["schema"], "components": PAGE["components"]}


def takes(route: str, body: dict[str, Any]) -> bool:
    schema = schema_at(route, "post", "requestBody", "content", "application/json")
    return jsonschema.Draft202012Validator(schema).is_valid(body)


def is_served(route: str, body: dict[str, Any]) -> bool:
    asked = chat_request if route.endswith("chat/completions") else text_request
    try:
        asked(MODEL, **body)
    except ServingError:
        return False
    return True


@pytest.mark.parametrize("asks_for_keys", [True, False])
def test_the_page_is_openapi(asks_for_keys):
    openapi_spec_validator.validate(openapi_page(MODEL, asks_for_keys=asks_for_keys))


def test_every_route_is_on_it_and_no_other():
    app = create_app(http_service(ScriptedGenerator()))
    served = {
        (route.path.replace(":path", ""), method.lower())
        for route in app.routes
        if isinstance(route, Route)
        for method in (route.methods or set()) - {"HEAD"}  # comes with every GET
    }
    described = {(path, method) for path, methods in PAGE["paths"].items() for method in methods}
    assert described == served


def test_streams_that_go_on_and_adapters_are_described():
    page = openapi_page(replace(MODEL, adapters=("lora",)), asks_for_keys=False)
    for path in ("/v1/chat/completions", "/v1/completions"):
        operation = page["paths"][path]["post"]
        assert "409" in operation["responses"]
        assert "last-event-id" in [one["name"] for one in operation["parameters"]]
    for name in ("ChatCompletionRequest", "CompletionRequest", "ResponsesRequest"):
        model = page["components"]["schemas"][name]["properties"]["model"]
        assert model["enum"] == [MODEL.name, "lora"]


def test_keys_are_asked_for_where_there_are_any_but_at_the_open_paths():
    for path, methods in PAGE["paths"].items():
        (operation,) = methods.values()
        assert operation["security"] == ([] if path in OPEN_PATHS else [{"key": []}])
        assert ("401" in operation["responses"]) == (path not in OPEN_PATHS)
    without = openapi_page(MODEL, asks_for_keys=False)
    assert all(
        operation["security"] == [] and "401" not in operation["responses"]
        for methods in without["paths"].values()
        for operation in methods.values()
    )


async def test_the_route_has_the_page_and_says_where_it_is_served():
    async with client_of(ScriptedGenerator()) as client:
        response = await client.get("/openapi.json")
    assert response.headers["content-type"] == "application/json"
    page = response.json()
    assert page == json.loads(json.dumps(openapi_page(MODEL, asks_for_keys=False)))
    assert page["servers"] == [{"url": "/"}]
    under = json.loads(OpenApiPage(asks_for_keys=False).text(MODEL, "/llm"))
    assert under["servers"] == [{"url": "/llm"}]


def test_the_page_is_built_once_for_a_model():
    page = OpenApiPage(asks_for_keys=False)
    first = page.text(MODEL, "")
    assert page.text(MODEL, "") is first
    smaller = json.loads(page.text(served_model(max_tokens_limit=7), ""))
    fields = smaller["components"]["schemas"]["CompletionRequest"]["properties"]
    assert fields["max_tokens"]["anyOf"][0]["maximum"] == 7


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"max_tokens": 100, "temperature": 0, "top_p": 1, "top_k": -1, "seed": 2**64 - 1},
        {"temperature": 2.0, "min_p": 1, "presence_penalty": -2, "repetition_penalty": 0.001},
        {"stop": "x"},
        {"stop": ["x", "y"], "stop_token_ids": [0, 5], "bad_words": ["the bear"]},
        {"stop": [], "stop_token_ids": [], "bad_words": [], "logit_bias": {}},
        {"logit_bias": {"7": -100, "12": 0.5}, "min_tokens": 3},
        {"temperature": None, "stop": None, "speculation": None, "tools": None, "anything": None},
        {"n": 8, "user": 5, "metadata": {"a": 1}, "best_of": 1, "tools": [], "tool_choice": "auto"},
        {"stream": True, "stream_options": {"include_usage": True, "include_obfuscation": None}},
        {"speculation": {"k": 8, "enabled": None, "drafter": "ngram", "what": None}},
        {"response_format": {"type": "text", "json_schema": None}},
        {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}},
        {"structured_outputs": {"json": SCHEMA, "regex": None, "grammar": None}},
        {"structured_outputs": {"json": json.dumps(SCHEMA)}},
        {"structured_outputs": {"structural_tag": '{"format": {"type": "any_text"}}'}},
        {"structured_outputs": {"choice": ["a"], "json_object": False}},
        {"structured_outputs": {"grammar": "start: /a/", "disable_fallback": True}},
        {"structured_outputs": {"structural_tag": {"format": {"type": "any_text"}}}},
        {"structured_outputs": {"json": SCHEMA, "whitespace_pattern": " ?"}},
        {"response_format": {"type": "structural_tag", "format": {"type": "any_text"}}},
        {"cache_salt": "s", "ignore_eos": True, "include_stop_str_in_output": True},
    ],
)
def test_what_is_served_fits_the_page(route, fields):
    body = BODIES[route] | fields
    assert is_served(route, body)
    assert takes(route, body)


@pytest.mark.parametrize("route", BODIES)
@pytest.mark.parametrize("fields", [fields for fields, *_ in BY_SHAPE])
def test_what_does_not_fit_the_page_is_refused(route, fields):
    body = BODIES[route] | fields
    assert not takes(route, body)
    assert not is_served(route, body)


PARTS = [{"type": "text", "text": "a", "cache_control": {}}]


FIELDS_OF = {
    "/v1/chat/completions": [
        ({"messages": [{"role": "user", "content": PARTS}]}, True),
        ({"messages": [{"role": "user", "content": []}]}, False),
        ({"messages": [{"role": "tool", "content": "x"}]}, True),
        ({"messages": [{"role": "assistant", "content": None, "tool_calls": [{}]}]}, True),
        ({"messages": [{"role": "assistant", "tool_calls": [{}] * 129}]}, False),
        ({"messages": [{"role": "user", "content": "x", "weight": 1}]}, True),
        ({"messages": [{"role": "user", "content": "x", "name": None, "tool_calls": []}]}, True),
        ({"logprobs": True, "top_logprobs": 20}, True),
        ({"logprobs": 1}, False),
        ({"echo": True}, False),
        ({"max_completion_tokens": 100}, True),
    ],
    "/v1/completions": [
        ({"prompt": ""}, False),
        ({"prompt": []}, False),
        ({"prompt": [1, 2]}, True),
        ({"prompt": ["a"]}, True),
        ({"prompt": [[1, 2]]}, True),
        ({"prompt": [1, "a"]}, False),
        ({"prompt": [MODEL.tokenizer.vocab_size]}, False),
        ({"prompt": None}, False),
        ({"logprobs": False}, True),
        ({"logprobs": 20, "echo": True}, True),
        ({"logprobs": True}, False),
        ({"logprobs": 21}, False),
        ({"max_completion_tokens": 5}, False),
    ],
}


@pytest.mark.parametrize(
    ("route", "fields", "is_right"),
    [(route, *row) for route, rows in FIELDS_OF.items() for row in rows],
)
def test_fields_of_one_route(route, fields, is_right):
    body = BODIES[route] | fields
    assert (takes(route, body), is_served(route, body)) == (is_right, is_right)


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("post", "/v1/chat/completions", CHAT),
        ("post", "/v1/chat/completions", CHAT | {"n": 2}),
        ("post", "/v1/chat/completions", {}),
        ("post", "/v1/chat/completions", CHAT | {"model": "other"}),
        ("post", "/v1/completions", TEXT),
        ("post", "/v1/completions", TEXT | {"stream": True}),
        ("post", "/v1/responses", {"model": "tiny", "input": "hi", "store": True}),
        ("post", "/v1/responses", {"model": "tiny", "input": [], "stream": True}),
        ("post", "/tokenize", {"prompt": "hi", "return_token_strs": True}),
        ("post", "/tokenize", {"prompt": "hi", "messages": CHAT["messages"]}),
        ("post", "/detokenize", {"tokens": [5, 6]}),
        ("post", "/detokenize", {"tokens": [-1]}),
        ("get", "/v1/models", None),
        ("get", "/v1/models/{name}", None),
        ("get", "/health", None),
        ("get", "/readyz", None),
        ("get", "/livez", None),
        ("get", "/metrics", None),
        ("get", "/version", None),
        ("get", "/docs", None),
        ("get", "/openapi.json", None),
    ],
)
async def test_answers_fit_the_page(method, path, body):
    async with client_of(ScriptedGenerator()) as client:
        response = await client.request(method, path.replace("{name}", "tiny"), json=body)
    told = PAGE["paths"][path][method]["responses"][str(response.status_code)]
    kind = response.headers["content-type"].split(";")[0]
    schema = {**told["content"][kind]["schema"], "components": PAGE["components"]}
    answer = response.json() if kind == "application/json" else response.text
    jsonschema.validate(answer, schema, jsonschema.Draft202012Validator)
    assert response.headers.keys() >= told["headers"].keys()
