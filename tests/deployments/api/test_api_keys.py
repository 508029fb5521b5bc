"""API keys: the file, its reloading, the gate over ASGI, and the command that makes one."""

from __future__ import annotations

import hashlib
import logging
import os
import re
from pathlib import Path
from typing import Any

import pytest

from deployments.api.keys import ApiKeys, Tenant, faults_of_keys, read_key_file
from deployments.api.playground.page import PAGE_PATHS
from deployments.api.schemas.openapi import OPEN_PATHS
from deployments.api_keys import main
from deployments.ingress.metrics import RequestMetrics
from deployments.serve.instruments import Meters
from router.types import GenerationRequest
from tests.fakes.clock import Clock
from tests.fakes.http import CHAT, ScriptedGenerator
from tests.harness.http_clients import client_of

ASKED: dict[str, Any] = {
    "/v1/chat/completions": CHAT,
    "/v1/models": None,
    "/v1/responses": {"model": "tiny", "input": "hi"},
    "/tokenize": {"prompt": "a"},
    "/detokenize": {"tokens": [5]},
    "/openapi.json": None,
}


def line(name: str, key: str, limits: str = "") -> str:
    return f"{name} {hashlib.sha256(key.encode()).hexdigest()} {limits}\n"


def name_of(keys: ApiKeys, key: bytes) -> str | None:
    tenant = keys.tenant_of(key)
    return None if tenant is None else tenant.name


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.txt"
    path.write_text(
        "# clients\n\n" + line("alice", "sk-a") + line("bob", "sk-b").strip() + " # b\n"
    )
    return path


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 401),
        ({"authorization": "Bearer sk-wrong"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"authorization": "Basic sk-a"}, 401),
        ({"authorization": "Bearer sk-a"}, 200),
        ({"authorization": "bearer sk-b"}, 200),
    ],
)
@pytest.mark.parametrize(("path", "body"), ASKED.items(), ids=ASKED)
@pytest.mark.parametrize("prefix", ["", "/llm", "/v1", "/health"])
async def test_routes_need_a_known_key(key_file, headers, status, path, body, prefix):
    async with client_of(ScriptedGenerator(), api_keys=ApiKeys(key_file), prefix=prefix) as client:
        method = "GET" if body is None else "POST"
        response = await client.request(method, path, json=body, headers=headers)
    assert response.status_code == status
    if status == 401:
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.headers["x-request-id"]
        assert "sk-wrong" not in response.text


@pytest.mark.parametrize("prefix", ["", "/llm"])
@pytest.mark.parametrize("path", sorted(OPEN_PATHS))
async def test_open_routes_need_no_key(key_file, path, prefix):
    async with client_of(ScriptedGenerator(), api_keys=ApiKeys(key_file), prefix=prefix) as client:
        assert (await client.get(path)).status_code == 200


@pytest.mark.parametrize("path", ["/playground", "/doc", "/v2/models", "/health/x", "/llm/health"])
async def test_what_is_not_open_needs_a_key_also_where_there_is_nothing(key_file, path):
    async with client_of(ScriptedGenerator(), api_keys=ApiKeys(key_file)) as client:
        assert (await client.get(path)).status_code == 401
        headers = {"authorization": "Bearer sk-a"}
        assert (await client.get(path, headers=headers)).status_code == 404


async def test_open_paths_are_routes_and_the_page_calls_them_so(key_file):
    async with client_of(ScriptedGenerator(), api_keys=ApiKeys(key_file)) as client:
        headers = {"authorization": "Bearer sk-a"}
        paths = (await client.get("/openapi.json", headers=headers)).json()["paths"]
    opened = {
        path for path, methods in paths.items() if methods.get("get", {}).get("security") == []
    }
    assert opened == OPEN_PATHS - PAGE_PATHS | {"/"}
    assert opened == {*("/", "/docs", "/health", "/livez", "/readyz", "/metrics", "/version")}


async def test_a_key_is_never_logged(key_file, caplog):
    caplog.set_level(logging.DEBUG)
    async with client_of(ScriptedGenerator(), api_keys=ApiKeys(key_file)) as client:
        await client.get("/v1/models", headers={"authorization": "Bearer sk-a"})
        await client.get("/v1/models", headers={"authorization": "Bearer sk-wrong"})
    assert "sk-" not in caplog.text


def test_a_changed_file_counts_within_a_second(key_file):
    clock = Clock()
    keys = ApiKeys(key_file, clock=clock)
    assert name_of(keys, b"sk-a") == "alice"
    replacement = key_file.with_suffix(".new")
    replacement.write_text(line("carol", "sk-c"))
    os.replace(replacement, key_file)
    clock.now_s = 1.0
    assert name_of(keys, b"sk-a") is None
    assert name_of(keys, b"sk-c") == "carol"


@pytest.mark.parametrize("text", ["", "# nobody\n\n", "nonsense\n"])
def test_a_file_without_a_key_lets_nobody_in(key_file, caplog, text):
    clock = Clock()
    keys = ApiKeys(key_file, clock=clock)
    key_file.write_text(text)
    clock.now_s = 1.0
    assert name_of(keys, b"sk-a") is None
    assert "has no key, so nobody could be served" in caplog.text
    assert name_of(ApiKeys(key_file), b"sk-a") is None  # a replica that starts now does the same
    key_file.write_text(line("carol", "sk-c"))
    clock.now_s = 2.0
    assert name_of(keys, b"sk-c") == "carol"


def test_a_wrong_line_is_skipped_and_counted_and_its_neighbours_count(key_file, caplog):
    clock = Clock()
    keys = ApiKeys(key_file, clock=clock)
    assert keys.num_refused == 0
    wrong = ["alice sk-a\n", "bob\n", line("x" * 65, "sk-x"), line("dora", "sk-d").upper()]
    key_file.write_bytes(("".join(wrong) + line("carol", "sk-c")).encode() + b"\xff\xfe\n")
    clock.now_s = 1.0
    assert keys.num_refused == 5
    assert name_of(keys, b"sk-c") == "carol"
    assert name_of(keys, b"sk-a") is None
    assert "line 1 of" in caplog.text
    assert "sk-a" not in caplog.text


def test_a_file_that_cannot_be_read_leaves_the_keys_and_is_tried_again(key_file, caplog):
    clock = Clock()
    keys = ApiKeys(key_file, clock=clock)
    text = key_file.read_text()
    key_file.unlink()
    for now_s in (1.0, 2.0, 3.0):
        clock.now_s = now_s
        assert name_of(keys, b"sk-a") == "alice"
    assert keys.num_refused == 1
    assert caplog.text.count("API keys stay as they were") == 1
    key_file.write_text(text.replace("alice", "anna"))
    clock.now_s = 4.0
    assert name_of(keys, b"sk-a") == "anna"
    assert keys.num_refused == 0


async def test_skipped_lines_are_on_the_page_of_metrics(key_file):
    key_file.write_text(line("alice", "sk-a") + "nonsense\n")
    keys = ApiKeys(key_file)
    metrics = RequestMetrics(Meters({"model_name": "tiny"}), lambda: keys.num_refused)
    assert b'outrider:api_keys_refused{model_name="tiny"} 1.0\n' in metrics.text()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alice sk-plain\n", "line 1 of .* is not 'name digest'"),
        ("# only a comment\n", "has no key"),
        (line("alice", "sk-a") + "x" * 65 + " " + "0" * 64, "line 2"),
    ],
)
def test_the_check_before_a_start_refuses_what_a_replica_would_skip(tmp_path, text, message):
    path = tmp_path / "keys.txt"
    path.write_text(text)
    faults = faults_of_keys(path)
    assert re.search(message, " ".join(faults))
    assert all("router.api_keys_file" in fault for fault in faults)
    assert "sk-plain" not in " ".join(faults)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"router\.api_keys_file: .* cannot be read") as caught:
        ApiKeys(tmp_path / "none.txt")
    assert faults_of_keys(tmp_path / "none.txt") == [str(caught.value)]


def test_the_command_makes_a_key_that_works(tmp_path, capsys):
    main(["alice"])
    written = capsys.readouterr()
    key = written.err.rsplit(" ", 1)[1].strip()
    path = tmp_path / "keys.txt"
    path.write_text(written.out)
    assert key not in written.out
    assert name_of(ApiKeys(path), key.encode()) == "alice"
    assert list(read_key_file(path).tenants.values()) == [Tenant(name="alice")]


def test_the_command_refuses_a_name_that_the_file_would_not_take(capsys):
    with pytest.raises(SystemExit):
        main(["a b"])
    assert "name must be" in capsys.readouterr().err


def test_a_line_has_limits_of_the_client(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_text(
        line("alice", "sk-a", "sessions=8  tokens_per_minute=60000 group=lab # and no more")
        + line("bob", "sk-b")
    )
    keys = ApiKeys(path)
    assert keys.tenant_of(b"sk-a") == Tenant(
        name="alice", max_sessions=8, tokens_per_minute=60_000, group="lab"
    )
    assert keys.tenant_of(b"sk-b") == Tenant(name="bob")


@pytest.mark.parametrize(
    ("limits", "fault"),
    [
        ("sessions=0", "sessions must be a whole number from 1 on, got '0'"),
        (
            "tokens_per_minute=many",
            "tokens_per_minute must be a whole number from 1 on, got 'many'",
        ),
        ("group=a/b", "group must be a name, got 'a/b'"),
        ("seats=3", "seats is no limit, there are sessions, tokens_per_minute, group"),
        ("sessions", "is not 'name digest'"),
    ],
)
def test_a_limit_that_is_wrong_is_named_and_its_key_opens_nothing(
    tmp_path: Path, limits: str, fault: str
) -> None:
    path = tmp_path / "keys.txt"
    path.write_text(line("alice", "sk-a", limits) + line("bob", "sk-b"))
    [found] = faults_of_keys(path)
    assert fault in found
    assert "line 1" in found
    keys = ApiKeys(path)
    assert (name_of(keys, b"sk-a"), name_of(keys, b"sk-b")) == (None, "bob")


async def asked_as(key: str, keys: ApiKeys, **fields: Any) -> GenerationRequest:
    """Return the request that reaches the generator from a client with that key."""
    generator = ScriptedGenerator()
    async with client_of(generator, api_keys=keys) as client:
        answer = await client.post(
            "/v1/chat/completions",
            json=CHAT | fields,
            headers={"authorization": f"Bearer {key}"},
        )
    assert answer.status_code == 200, answer.text
    [request] = generator.requests
    return request


async def test_clients_share_nothing_but_within_a_group(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_text(
        line("alice", "sk-a")
        + line("alice", "sk-a2")
        + line("bob", "sk-b")
        + line("carol", "sk-c", "group=lab")
        + line("dan", "sk-d", "group=lab")
        + line("lab", "sk-l")
    )
    keys = ApiKeys(path)
    names = ("sk-a", "sk-a2", "sk-b", "sk-c", "sk-d", "sk-l")
    salts = {key: (await asked_as(key, keys)).cache_salt for key in names}
    assert salts["sk-a"] == salts["sk-a2"]
    assert salts["sk-c"] == salts["sk-d"]
    assert len(set(salts.values())) == 4  # alice, bob, the group, and who is called like it
    asked = {key: (await asked_as(key, keys, cache_salt="s")).cache_salt for key in salts}
    assert len(set(asked.values()) | set(salts.values())) == 8
    nobody = ScriptedGenerator()
    async with client_of(nobody) as client:
        await client.post("/v1/chat/completions", json=CHAT | {"cache_salt": "s"})
    assert nobody.requests[0].cache_salt == "s"


async def test_a_client_with_less_than_others_says_so_to_the_engines(tmp_path: Path) -> None:
    path = tmp_path / "keys.txt"
    path.write_text(line("alice", "sk-a") + line("bob", "sk-b"))
    generator = ScriptedGenerator()
    options: dict[str, Any] = {
        "api_keys": ApiKeys(path),
        "goes_first": lambda tenant: tenant.name == "bob",
    }
    async with client_of(generator, **options) as client:
        for key in ("sk-a", "sk-b"):
            headers = {"authorization": f"Bearer {key}"}
            answer = await client.post("/v1/chat/completions", json=CHAT, headers=headers)
            assert answer.status_code == 200, answer.text
    assert [request.goes_first for request in generator.requests] == [False, True]
