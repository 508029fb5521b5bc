"""Paths as base URLs and proxies spell them."""

from __future__ import annotations

import pytest

from tests.fakes.http import CHAT, ScriptedGenerator
from tests.harness.http_clients import client_of


@pytest.mark.parametrize("prefix", ["", "/llm", "/v1"])
@pytest.mark.parametrize(
    "path",
    [
        "/v1/chat/completions/",
        "//v1/chat/completions",
        "/v1//chat/completions",
        "/v1/chat/completions//",
        "/chat/completions",
        "/v1/v1/chat/completions",
        "//v1/v1//chat/completions/",
    ],
)
async def test_the_route_that_can_only_be_meant_answers(prefix, path):
    async with client_of(ScriptedGenerator(), prefix=prefix) as client:
        answer = await client.post(f"http://test{prefix}{path}", json=CHAT)
    assert answer.status_code == 200
    assert answer.json()["choices"][0]["message"]["content"] == "The bear."


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/models", 200),
        ("/models/tiny", 200),
        ("/v1/models/tiny/", 200),
        ("/health/", 200),
        ("/v1/health", 200),
        ("/v1/tokenize", 405),
        ("/v2/models", 404),
        ("/v1", 404),
        ("/v1/playground", 404),
        ("/chat", 404),
    ],
)
async def test_other_paths_lead_where_they_say(path, status):
    async with client_of(ScriptedGenerator()) as client:
        answer = await client.get(f"http://test{path}")
    assert answer.status_code == status
    if status != 200:
        assert path in answer.json()["error"]["message"] or "/tokenize" in path


@pytest.mark.parametrize("path", ["//v1/models", "/models", "/v1/models/", "/v1/v1/models"])
async def test_no_spelling_goes_round_the_keys(keys, path):
    async with client_of(ScriptedGenerator(), api_keys=keys) as client:
        assert (await client.get(f"http://test{path}")).status_code == 401
        assert (await client.get("http://test//health/")).status_code == 200


@pytest.mark.parametrize("path", ["/v1/models", "/health", "/metrics", "/version", "/", "/docs"])
async def test_who_asks_for_the_head_alone_gets_its_status(path):
    async with client_of(ScriptedGenerator()) as client:
        answer = await client.head(f"http://test{path}")
    assert answer.status_code == 200
