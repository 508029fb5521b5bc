"""API keys: the file, its reloading, the gate over ASGI, and the command that makes one."""

from __future__ import annotations

import hashlib
import logging
import os
from pathlib import Path

import httpx
import pytest
from http_fakes import ScriptedGenerator, http_service

from deployments.api.http import create_app
from deployments.api_keys import ApiKeys, main, read_key_file

CHAT = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}]}


def line(name: str, key: str) -> str:
    return f"{name} {hashlib.sha256(key.encode()).hexdigest()}\n"


class Clock:
    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def key_file(tmp_path: Path) -> Path:
    path = tmp_path / "keys.txt"
    path.write_text(
        "# clients\n\n" + line("alice", "sk-a") + line("bob", "sk-b").strip() + " # b\n"
    )
    return path


def client_with(keys: ApiKeys) -> httpx.AsyncClient:
    app = create_app(http_service(ScriptedGenerator(), api_keys=keys))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://test")


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
@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models"])
async def test_routes_under_v1_need_a_known_key(key_file, headers, status, path):
    async with client_with(ApiKeys(key_file)) as client:
        if path.endswith("models"):
            response = await client.get(path, headers=headers)
        else:
            response = await client.post(path, json=CHAT, headers=headers)
    assert response.status_code == status
    if status == 401:
        error = response.json()["error"]
        assert (error["type"], error["code"]) == ("invalid_request_error", "invalid_api_key")
        assert response.headers["www-authenticate"] == "Bearer"
        assert response.headers["x-request-id"]
        assert "sk-wrong" not in response.text


async def test_health_and_version_need_no_key(key_file):
    async with client_with(ApiKeys(key_file)) as client:
        assert (await client.get("/health")).status_code == 200
        assert (await client.get("/version")).status_code == 200


async def test_a_key_is_never_logged(key_file, caplog):
    caplog.set_level(logging.DEBUG)
    async with client_with(ApiKeys(key_file)) as client:
        await client.get("/v1/models", headers={"authorization": "Bearer sk-a"})
        await client.get("/v1/models", headers={"authorization": "Bearer sk-wrong"})
    assert "sk-" not in caplog.text


def test_a_changed_file_counts_within_a_second(key_file):
    clock = Clock()
    keys = ApiKeys(key_file, clock=clock)
    assert keys.name_of(b"sk-a") == "alice"
    replacement = key_file.with_suffix(".new")
    replacement.write_text(line("carol", "sk-c"))
    os.replace(replacement, key_file)
    clock.now_s = 1.0
    assert keys.name_of(b"sk-a") is None
    assert keys.name_of(b"sk-c") == "carol"


@pytest.mark.parametrize("damage", ["nonsense\n", "", None])
def test_a_damaged_file_leaves_the_keys_and_says_so(key_file, caplog, damage):
    clock = Clock()
    keys = ApiKeys(key_file, clock=clock)
    if damage is None:
        key_file.unlink()
    else:
        key_file.write_text(damage)
    clock.now_s = 1.0
    assert keys.name_of(b"sk-a") == "alice"
    assert "API keys stay as they were" in caplog.text
    key_file.write_text(line("carol", "sk-c"))
    clock.now_s = 2.0
    assert keys.name_of(b"sk-c") == "carol"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("alice sk-plain\n", "line 1 of .* is not 'name digest'"),
        ("# only a comment\n", "has no key"),
        (line("alice", "sk-a") + "x" * 65 + " " + "0" * 64, "line 2"),
    ],
)
def test_a_wrong_file_is_refused_without_showing_it(tmp_path, text, message):
    path = tmp_path / "keys.txt"
    path.write_text(text)
    with pytest.raises(ValueError, match=message) as caught:
        ApiKeys(path)
    assert "router.api_keys_file" in str(caught.value)
    assert "sk-plain" not in str(caught.value)


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"router\.api_keys_file: .* cannot be read"):
        ApiKeys(tmp_path / "none.txt")


def test_the_command_makes_a_key_that_works(tmp_path, capsys):
    main(["alice"])
    written = capsys.readouterr()
    key = written.err.rsplit(" ", 1)[1].strip()
    path = tmp_path / "keys.txt"
    path.write_text(written.out)
    assert key not in written.out
    assert ApiKeys(path).name_of(key.encode()) == "alice"
    assert list(read_key_file(path).values()) == ["alice"]


def test_the_command_refuses_a_name_that_the_file_would_not_take(capsys):
    with pytest.raises(SystemExit):
        main(["a b"])
    assert "name must be" in capsys.readouterr().err
