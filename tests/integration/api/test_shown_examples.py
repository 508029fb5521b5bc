"""Requests that pages show, as they stand there, against the demo."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import httpx
import jsonschema
import pytest

from tests.harness.served_demo import demo_over_http

ROOT = Path(__file__).parents[3]
FRONT = ROOT / "README.md"
SPECULATION = ROOT / "deployments" / "docs" / "speculation-per-request.md"
AT = "http://127.0.0.1:8000"
NAME = "demo"  # of the model in this harness
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def shown(page: Path, language: str, start: str) -> str:
    """The block of code that begins so."""
    text = page.read_text(encoding="utf-8")
    found = re.search(
        rf"^```{language}\n({re.escape(start)}.*?)^```", text, re.MULTILINE | re.DOTALL
    )
    assert found is not None, start
    return found[1]


async def test_the_request_by_curl_gives_json_by_its_schema_unless_max_tokens_cuts_it() -> None:
    command = shown(FRONT, "bash", "curl")
    assert f"{AT}/v1/chat/completions" in command
    body = json.loads(command[command.index("'{") + 1 : command.rindex("'")])
    body["model"] = NAME
    schema = body["response_format"]["json_schema"]["schema"]
    async with (
        demo_over_http() as demo,
        httpx.AsyncClient(base_url=demo.root_url, timeout=120) as client,
    ):
        whole = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
        assert whole["finish_reason"] == "stop"
        record = json.loads(whole["message"]["content"])
        jsonschema.validate(record, schema)
        assert (record["customer"], record["quantity"]) == ("Imogen", 6)
        body["max_tokens"] = 6
        cut = (await client.post("/v1/chat/completions", json=body)).json()["choices"][0]
    assert cut["finish_reason"] == "length"
    assert whole["message"]["content"].startswith(cut["message"]["content"])
    with pytest.raises(ValueError, match=r"Unterminated|Expecting"):
        json.loads(cut["message"]["content"])


async def test_the_python_that_is_shown_runs_and_its_assertion_holds() -> None:
    code = shown(SPECULATION, "python", "from openai")
    assert code.count("assert ") == 1
    async with demo_over_http() as demo:
        names: dict[str, object] = {}
        here = code.replace(AT, demo.root_url).replace("outrider-demo", NAME)
        assert here != code
        await asyncio.to_thread(exec, compile(here, SPECULATION.name, "exec"), names)
    assert names["drafted"] is not names["plain"]
