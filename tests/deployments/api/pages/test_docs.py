"""The page at /docs: whole in itself, and behind the key where keys are asked for."""

from __future__ import annotations

import hashlib
import re

from deployments.api.keys import ApiKeys
from tests.fakes.http import ScriptedGenerator
from tests.harness.http_clients import client_of


async def test_the_page_needs_nothing_from_elsewhere():
    async with client_of(ScriptedGenerator()) as client:
        response = await client.get("/docs")
    assert response.status_code == 200
    assert response.headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in response.headers["content-security-policy"]
    page = response.text
    assert re.findall(r"https?://|//[a-z]", page) == []
    assert re.findall(r"""(?:src|href)=["'](?!data:)""", page) == []
    assert re.findall(r"""fetch\("([^"]*)"\)""", page) == ["openapi.json"]
    assert "innerHTML" not in page  # what a server says of itself is never markup


async def test_it_asks_for_a_key_where_there_are_keys(tmp_path):
    file = tmp_path / "keys"
    file.write_text(f"me {hashlib.sha256(b'secret').hexdigest()}\n")
    async with client_of(ScriptedGenerator(), api_keys=ApiKeys(file)) as client:
        assert (await client.get("/docs")).status_code == 401
        headers = {"authorization": "Bearer secret"}
        assert (await client.get("/docs", headers=headers)).status_code == 200
        for path in ("/tokenize", "/detokenize", "/v1/responses"):
            assert (await client.post(path, json={})).status_code == 401
