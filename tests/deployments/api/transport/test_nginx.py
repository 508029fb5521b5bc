"""nginx in front with its defaults, but for a time-out 20 times shorter, as our own beats are."""

from __future__ import annotations

import asyncio
import gzip
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

from deployments.api.transport.settings import HttpConfig
from loadtest.clients.nginx import nginx_before
from loadtest.clients.processes import NotHere
from models.protocol.errors import Unavailable
from router.types import Delta
from tests.fakes.http import CHAT, ScriptedGenerator
from tests.harness.http_clients import served

TIMEOUT_S = 3  # nginx's own is 60, our heart's beats are 15 and 45
LATE_S = 3.0 * TIMEOUT_S
HEART = HttpConfig(heartbeat_s=0.75, whole_heartbeat_s=0.75, allowed_origins=["https://a.example"])
NO_HEART = HttpConfig(heartbeat_s=0, whole_heartbeat_s=0)
CUT = f"proxy_read_timeout {TIMEOUT_S}s;"


@contextmanager
def behind_nginx(
    generator: ScriptedGenerator, folder: Path, transport: HttpConfig, directives: str = CUT
) -> Iterator[str]:
    try:
        with (
            served(generator, transport=transport) as url,
            nginx_before(url, folder, directives) as front,
        ):
            yield front
    except NotHere as error:
        pytest.skip(str(error))


def client_of(url: str) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0, timeout=60)


def test_without_a_heart_nginx_gives_up_a_late_answer(tmp_path: Path) -> None:
    generator = ScriptedGenerator(texts=("late",), delay_s=LATE_S)
    with (
        behind_nginx(generator, tmp_path, NO_HEART) as url,
        client_of(url) as client,
        pytest.raises(openai.APIStatusError) as caught,
    ):
        list(client.chat.completions.create(**CHAT, stream=True))
    assert caught.value.status_code == 504


def test_a_stream_outlives_nginx(tmp_path: Path) -> None:
    generator = ScriptedGenerator(texts=("late",), delay_s=LATE_S)
    with behind_nginx(generator, tmp_path, HEART) as url, client_of(url) as client:
        chunks = list(client.chat.completions.create(**CHAT, stream=True))
    assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == "late"
    assert chunks[-1].choices[0].finish_reason == "stop"


def test_a_whole_answer_outlives_nginx(tmp_path: Path) -> None:
    generator = ScriptedGenerator(texts=("late",), delay_s=LATE_S)
    with behind_nginx(generator, tmp_path, HEART) as url, client_of(url) as client:
        answer = client.chat.completions.create(**CHAT)
    assert answer.choices[0].message.content == "late"


class Late(ScriptedGenerator):
    """Fails before any text, after a while."""

    async def generate(self, request: Any, detokenizer: Any) -> Any:
        await asyncio.sleep(2.0)
        raise Unavailable("broken")
        yield Delta("", ())


def test_a_whole_answer_that_fails_late_is_no_success(tmp_path: Path) -> None:
    with (
        behind_nginx(Late(), tmp_path, HEART) as url,
        httpx.Client(base_url=url) as client,
        pytest.raises(httpx.RemoteProtocolError),
    ):
        client.post("/v1/chat/completions", json=CHAT)


def test_tokens_are_not_gathered(tmp_path: Path) -> None:
    """The second text is written when the first has been read through nginx."""
    is_read = threading.Event()

    class Waiting(ScriptedGenerator):
        async def generate(self, request: Any, detokenizer: Any) -> Any:
            async for item in super().generate(request, detokenizer):
                yield item
                await asyncio.to_thread(is_read.wait, 60.0)

    generator = Waiting(texts=("one", "two"))
    with behind_nginx(generator, tmp_path, HEART) as url, client_of(url) as client:
        seen = []
        for chunk in client.chat.completions.create(**CHAT, stream=True):
            if chunk.choices[0].delta.content:
                seen.append(chunk.choices[0].delta.content)
                is_read.set()
    assert seen == ["one", "two"]


def test_what_nginx_passes_on_is_what_was_asked(tmp_path: Path) -> None:
    generator = ScriptedGenerator()
    page = {"origin": "https://a.example"}
    with (
        behind_nginx(generator, tmp_path, HEART, "") as url,
        httpx.Client(base_url=url, headers=page) as client,
    ):
        answer = client.post(
            "//v1/chat/completions/",
            content=gzip.compress(json.dumps(CHAT).encode()),
            headers={"content-encoding": "gzip"},
        )
        asked = {"access-control-request-method": "POST"}
        preflight = client.options("/v1/chat/completions", headers=asked)
        head = client.head("/health/")
        refusal = client.post("/v1/chat/completions", content=b"{")
    assert answer.json()["choices"][0]["message"]["content"] == "The bear."
    assert answer.headers["access-control-allow-origin"] == "https://a.example"
    assert preflight.status_code == 200
    assert head.status_code == 200
    assert refusal.status_code == 400
    assert refusal.json()["error"]["code"] == "invalid_json"
    assert refusal.headers["x-request-id"]


def test_who_leaves_nginx_ends_the_generation(tmp_path: Path) -> None:
    generator = ScriptedGenerator(hang_at=1)
    with behind_nginx(generator, tmp_path, HEART) as url, client_of(url) as client:
        stream = client.chat.completions.create(**CHAT, stream=True)
        next(iter(stream))
        stream.close()
        for _ in range(1000):
            if generator.closed:
                break
            threading.Event().wait(0.01)
    assert generator.closed == 1
