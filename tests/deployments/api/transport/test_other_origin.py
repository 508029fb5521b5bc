"""A page of another origin in a headless Chromium, which asks the API and reads what comes."""

from __future__ import annotations

import json

import pytest

from deployments.api.transport.settings import HttpConfig
from tests.fakes.http import CHAT, ScriptedGenerator
from tests.fakes.scripted_server import answer, scripted_server
from tests.harness.browser.chromium import BrowserPage
from tests.harness.http_clients import served

pytestmark = [pytest.mark.asyncio(loop_scope="module")]

# Reads a stream as pages do; gives its pieces, or what went wrong.
STREAM = """
(async () => {
  try {
    const answer = await fetch("%s/v1/chat/completions", {
      method: "POST",
      headers: {"content-type": "application/json", "authorization": "Bearer none",
                "x-stainless-lang": "js"},
      body: JSON.stringify(%s),
    });
    const reader = answer.body.getReader(), decoder = new TextDecoder(), pieces = [];
    for (;;) {
      const {done, value} = await reader.read();
      if (done) break;
      pieces.push(decoder.decode(value, {stream: true}));
    }
    const id = answer.headers.get("x-request-id");
    return JSON.stringify({status: answer.status, id, pieces});
  } catch (error) {
    return JSON.stringify({error: String(error)});
  }
})()
"""


PAGE = answer(
    b"<!doctype html><title>another origin</title>", headers={"content-type": "text/html"}
)


async def streamed(
    browser: BrowserPage, origin: str, url: str, **fields: object
) -> dict[str, object]:
    await browser.open(f"{origin}/")
    found: dict[str, object] = json.loads(
        await browser.run(STREAM % (url, json.dumps({**CHAT, "stream": True, **fields})))
    )
    return found


async def test_a_page_that_is_let_in_streams_a_chat(browser: BrowserPage) -> None:
    with scripted_server(PAGE) as page:
        transport = HttpConfig(allowed_origins=[page.url], heartbeat_s=0.1)
        generator = ScriptedGenerator(delay_s=0.3)
        with served(generator, transport=transport) as url:
            found = await streamed(browser, page.url, url)
            refused = await streamed(browser, page.url, url, temperature=9)
    assert found["status"] == 200
    assert str(found["id"]).startswith("req-")
    pieces = [str(piece) for piece in found["pieces"]]  # type: ignore[attr-defined]
    assert len(pieces) > 3
    assert pieces[0].startswith(": ")
    assert pieces[-1].endswith("data: [DONE]\n\n")
    assert refused["status"] == 400
    assert "temperature" in str(refused["pieces"])


async def test_a_page_that_is_not_let_in_reads_nothing(browser: BrowserPage) -> None:
    generator = ScriptedGenerator()
    with scripted_server(PAGE) as page, served(generator) as url:
        found = await streamed(browser, page.url, url)
    assert "TypeError" in str(found.get("error"))
    assert generator.requests == []
