"""The playground's files: where they are served, to whom, and that nothing is from elsewhere."""

from __future__ import annotations

import re
import tomllib
from inspect import signature
from pathlib import Path

import pytest

from deployments.api.http import create_app
from deployments.api.keys import ApiKeys
from deployments.api.playground import page
from deployments.api.transport.settings import HttpConfig
from deployments.streams import events
from tests.fakes.http import ScriptedGenerator, http_service
from tests.harness.http_clients import client_of, client_over
from tests.harness.served_demo import mounted

ROOT = Path(__file__).parents[4]
STATIC = Path(page.__file__).parent / "static"
FILES = sorted(path.name for path in STATIC.iterdir())


@pytest.mark.parametrize("path", ["/", "/docs"])
async def test_a_page_names_files_that_there_are(path: str) -> None:
    async with client_of(ScriptedGenerator()) as client:
        found = await client.get(path)
        assert found.status_code == 200
        assert found.headers["content-type"].startswith("text/html")
        named = re.findall(r'(?:src|href)="([^"#]+)"', found.text)
        assert len(named) >= 3
        for name in named:
            assert not name.startswith(("/", "http")), name
            file = await client.get(f"/{name}")
            assert file.status_code == 200, name
            assert file.headers["content-security-policy"].startswith("default-src 'none'")
        again = await client.get(path, headers={"if-none-match": found.headers["etag"]})
        assert again.status_code == 304


@pytest.mark.parametrize("name", FILES)
def test_nothing_is_inline_and_nothing_is_from_elsewhere(name: str) -> None:
    text = (STATIC / name).read_text(encoding="utf-8")
    urls = re.findall(r"https?://[^\s\"'`)]+", text)
    assert all(url == "http://www.w3.org/2000/svg" for url in urls), urls
    assert len(text.encode()) < 20_000
    if name.endswith(".html"):
        assert not re.findall(r"<script(?![^>]*\bsrc=)[^>]*>|<style|\son\w+=|\sstyle=", text)
    if name.endswith(".js"):
        assert not re.findall(r"innerHTML|outerHTML|insertAdjacentHTML|eval\(|new Function", text)
        for imported in re.findall(r'from "(.+)"', text):
            assert (STATIC / imported).exists(), imported


async def test_the_browser_is_told_to_hold_the_page_to_that() -> None:
    async with client_of(ScriptedGenerator()) as client:
        headers = (await client.get("/")).headers
    policy = dict(
        part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
    )
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert headers["x-content-type-options"] == "nosniff"


async def test_the_page_needs_no_key_and_the_api_does(keys: ApiKeys) -> None:
    async with client_of(ScriptedGenerator(), api_keys=keys) as client:
        assert (await client.get("/")).status_code == 200
        for name in FILES:
            assert (await client.get(f"/playground/{name}")).status_code == 200
        for path in ("/playground/../v1/models", "/playground/other", "/playground", "/v1/models"):
            assert (await client.get(path)).status_code == 401, path


async def test_under_a_prefix_it_is_below_it() -> None:
    app = mounted(create_app(http_service(ScriptedGenerator())), "/llm")
    async with client_over(app) as client:
        bare = await client.get("/llm")
        assert bare.status_code == 307
        assert bare.headers["location"] == "/llm/"
        assert (await client.get("/llm/")).status_code == 200
        assert (await client.get("/llm/playground/app.js")).status_code == 200


@pytest.mark.parametrize("path", ["/playground/", "/playground/%2e%2e/page.py", "/playground/x.js"])
async def test_nothing_else_is_served(path: str) -> None:
    async with client_of(ScriptedGenerator()) as client:
        answer = await client.get(path)
    assert answer.status_code == 404
    assert answer.json()["error"]["code"] == "unknown_route"


async def test_other_methods_are_refused_in_words() -> None:
    async with client_of(ScriptedGenerator()) as client:
        for path in ("/", "/playground/app.js", "/livez", "/readyz", "/metrics"):
            answer = await client.post(path)
            assert answer.status_code == 405, path
            assert "method not allowed" in answer.json()["error"]["message"]


def test_readers_wait_for_three_signs_of_a_router_that_lives() -> None:
    script = (STATIC / "client.js").read_text(encoding="utf-8")
    [silence_ms] = re.findall(r"SILENCE_MS = ([0-9_]+);", script)
    silences_s = (float(silence_ms) / 1e3, signature(events).parameters["silence_s"].default)
    assert silences_s == (3 * HttpConfig().heartbeat_s,) * 2


def test_an_installation_has_the_files() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = project["tool"]["setuptools"]["package-data"]["deployments.api.playground"]
    folder = STATIC.parent
    matched = {path for pattern in patterns for path in folder.glob(pattern)}
    assert matched == set(STATIC.iterdir())
