"""Pages of other origins: preflights, answers and refusals that a browser lets them read."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import pytest
from pydantic import ValidationError

from deployments.api.transport.settings import HttpConfig
from models.protocol.errors import Unavailable
from tests.fakes.http import CHAT, ScriptedGenerator
from tests.harness.http_clients import client_of

PAGE = "https://chat.example.com"
PREFLIGHT = {
    "origin": PAGE,
    "access-control-request-method": "POST",
    "access-control-request-headers": "authorization,content-type,x-stainless-lang",
}


def client_for(
    origins: Sequence[str], generator: ScriptedGenerator | None = None, **options: Any
) -> AbstractAsyncContextManager[httpx.AsyncClient]:
    transport = HttpConfig(allowed_origins=list(origins))
    return client_of(generator or ScriptedGenerator(), transport=transport, **options)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/v1/responses"])
async def test_a_preflight_is_answered_without_a_key(keys, path):
    async with client_for([PAGE], api_keys=keys) as client:
        answer = await client.options(path, headers=PREFLIGHT)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "POST" in answer.headers["access-control-allow-methods"]
    allowed = answer.headers["access-control-allow-headers"]
    assert {"authorization", "content-type", "x-stainless-lang"} <= {
        name.strip().lower() for name in allowed.split(",")
    }
    assert "access-control-allow-credentials" not in answer.headers


async def test_a_page_of_the_internet_may_ask_a_server_of_the_house():
    headers = {**PREFLIGHT, "access-control-request-private-network": "true"}
    async with client_for([PAGE]) as client:
        answer = await client.options("/v1/chat/completions", headers=headers)
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-private-network"] == "true"


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "stream"])
async def test_an_answer_may_be_read_with_its_request_id(stream):
    async with client_for([PAGE]) as client:
        answer = await client.post(
            "/v1/chat/completions", json=CHAT | {"stream": stream}, headers={"origin": PAGE}
        )
    assert answer.status_code == 200
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert "x-request-id" in answer.headers["access-control-expose-headers"]
    assert "origin" in answer.headers["vary"].lower()


@pytest.mark.parametrize(
    ("method", "path", "content", "options", "status"),
    [
        ("POST", "/v1/chat/completions", b"{", {}, 400),
        ("POST", "/v1/chat/completions", b"{}", {"with_keys": True}, 401),
        ("GET", "/v1/nothing", b"", {}, 404),
        ("GET", "/v1/chat/completions", b"", {}, 405),
        ("POST", "/v1/chat/completions", b" " * 5000, {"body_limit_bytes": 4000}, 413),
        ("POST", "/v1/completions", b'{"model":"tiny","prompt":"a"}', {"fails": True}, 503),
    ],
    ids=lambda value: str(value)[:30],
)
async def test_a_refusal_may_be_read_as_well(keys, method, path, content, options, status):
    generator = ScriptedGenerator(error=Unavailable("gone") if options.pop("fails", 0) else None)
    if options.pop("with_keys", False):
        options["api_keys"] = keys
    async with client_for([PAGE], generator, **options) as client:
        answer = await client.request(method, path, content=content, headers={"origin": PAGE})
    assert answer.status_code == status
    assert answer.headers["access-control-allow-origin"] == PAGE
    assert set(answer.json()["error"]) == {"message", "type", "param", "code"}


async def test_other_pages_are_not_let_in():
    async with client_for([PAGE]) as client:
        headers = {**PREFLIGHT, "origin": "https://evil.example.com"}
        preflight = await client.options("/v1/chat/completions", headers=headers)
        answer = await client.get("/v1/models", headers={"origin": headers["origin"]})
    assert preflight.status_code == 400
    assert "access-control-allow-origin" not in preflight.headers
    assert "access-control-allow-origin" not in answer.headers


async def test_every_page_may_be_let_in():
    async with client_for(["*"]) as client:
        answer = await client.get("/v1/models", headers={"origin": "http://localhost:3000"})
        preflight = await client.options("/v1/models", headers=PREFLIGHT)
    assert answer.headers["access-control-allow-origin"] == "*"
    assert preflight.headers["access-control-allow-origin"] == "*"


async def test_none_is_let_in_unless_asked_for():
    async with client_for([]) as client:
        preflight = await client.options("/v1/chat/completions", headers=PREFLIGHT)
        answer = await client.get("/v1/models", headers={"origin": PAGE})
    assert preflight.status_code == 405
    assert not [name for name in answer.headers if name.startswith("access-control")]


@pytest.mark.parametrize(
    "origin",
    [
        "",
        "a.example",
        "https://a.example/",
        "https://a.example/app",
        "https://a.example:port",
        "https://*.example",
        "HTTPS://a.example",
    ],
)
def test_what_no_browser_sends_as_an_origin_is_refused_by_name(origin):
    with pytest.raises(ValidationError, match="allowed_origins") as caught:
        HttpConfig(allowed_origins=[origin])
    assert repr(origin) in str(caught.value)


@pytest.mark.parametrize(
    "origin", ["*", "null", "http://localhost:3000", "http://[::1]:80", "app://obsidian.md"]
)
def test_what_a_browser_sends_is_an_origin(origin):
    assert HttpConfig(allowed_origins=[origin]).allowed_origins == [origin]
