"""Numbers that no field takes: the client is told which field, whatever their size."""

from __future__ import annotations

import json
from typing import Any

import httpx
import pytest

from deployments.api.http import create_app
from deployments.api.schemas.requests import ChatCompletionRequest, CompletionRequest
from tests.fakes.http import ScriptedGenerator, http_service
from tests.harness.http_clients import client_of

CHAT = '{"model": "tiny", "messages": [{"role": "user", "content": "hi"}], %s}'
TEXT = '{"model": "tiny", "prompt": "hi", %s}'
BARE = '{"model": "tiny", %s}'
ROUTES = {CHAT: "/v1/chat/completions", TEXT: "/v1/completions", BARE: "/v1/completions"}

HUGE = {
    "401-digits": "1" + "0" * 400,
    "minus-401-digits": "-1" + "0" * 400,
    "4000-digits": "7" * 4000,
    "infinite": "1e400",
    "minus-infinite": "-1e400",
    "largest-double": "1.7e308",
}
WITHIN = (
    ('"logit_bias": {"5": %s}', "logit_bias"),
    ('"stop_token_ids": [%s]', "stop_token_ids"),
    ('"speculation": {"k": %s}', "speculation.k"),
)
FIELDS = [
    *((CHAT, f'"{name}": %s', name) for name in ChatCompletionRequest.model_fields),
    *((TEXT, f'"{name}": %s', name) for name in CompletionRequest.model_fields),
    *((route, *one) for route in (CHAT, TEXT) for one in WITHIN),
    (TEXT, '"best_of": %s', "best_of"),
    (BARE, '"prompt": [5, %s]', "prompt"),
    (BARE, '"prompt": [[5, %s]]', "prompt"),
]


async def answer(route: str, fields: str) -> httpx.Response:
    async with client_of(ScriptedGenerator()) as client:
        return await client.post(ROUTES[route], content=(route % fields).encode())


@pytest.mark.parametrize(
    ("route", "fields", "param"),
    FIELDS,
    ids=[f"{ROUTES[route].split('/')[2]}-{param}" for route, _, param in FIELDS],
)
async def test_a_number_out_of_range_names_its_field(route, fields, param):
    for name, number in HUGE.items():
        response = await answer(route, fields % number)
        assert response.status_code == 400, (name, response.text)
        error = response.json()["error"]
        assert error["param"].split("[")[0] == param, name
        assert param in error["message"], name
        assert len(error["message"]) < 5000, name


@pytest.mark.parametrize("number", [HUGE["401-digits"], "1e400"])
async def test_fields_without_effect_take_any_number(number):
    response = await answer(TEXT, f'"metadata": {{"a": {number}}}, "user": {number}')
    assert response.status_code == 200


async def test_more_digits_than_python_reads_are_not_json():
    response = await answer(TEXT, f'"seed": {"7" * 5000}')
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


@pytest.mark.parametrize("length", ["9" * 18, "1" + "0" * 18, "7" * 5000])
async def test_a_content_length_of_any_size_is_too_large(length):
    sent: list[dict[str, Any]] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/completions",
        "raw_path": b"/v1/completions",
        "query_string": b"",
        "headers": [(b"content-length", length.encode())],
    }
    await create_app(http_service(ScriptedGenerator()))(scope, receive, send)
    assert sent[0]["status"] == 413
    assert json.loads(sent[1]["body"])["error"]["code"] == "body_too_large"
