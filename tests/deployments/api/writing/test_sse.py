"""Events and the response that streams them, over plain ASGI callables."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from deployments.api.writing.sse import DONE, EventStream, Waits, encode_events

SCOPE: dict[str, Any] = {"type": "http"}


class Source:
    """Yields chunks, for ever if `endless`; knows whether it was closed."""

    def __init__(self, *, endless: bool = False, error: Exception | None = None) -> None:
        self.endless, self.error = endless, error
        self.is_closed = False

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        try:
            yield b"one"
            if self.error is not None:
                raise self.error
            yield b"two"
            while self.endless:
                await asyncio.sleep(0)
                yield b"more"
        finally:
            self.is_closed = True


def stream(source: Source, *, send_timeout_s: float) -> EventStream:
    def failed(error: Exception) -> bytes:
        return f"failed: {error}".encode()

    return EventStream(source.chunks(), waits=Waits(send_timeout_s), failed=failed)


async def never() -> dict[str, Any]:
    await asyncio.Event().wait()
    raise AssertionError("unreachable")


def test_each_body_is_one_event():
    assert encode_events([b'{"a":1}', b"{}"]) == b'data: {"a":1}\n\ndata: {}\n\n'
    assert encode_events([]) == b""
    assert DONE == b"data: [DONE]\n\n"


async def test_chunks_are_sent_one_by_one_and_the_source_is_closed():
    sent: list[dict[str, Any]] = []

    async def send(message: Any) -> None:
        sent.append(message)

    source = Source()
    await stream(source, send_timeout_s=1)(SCOPE, never, send)
    headers = dict(sent[0]["headers"])
    assert headers[b"content-type"].startswith(b"text/event-stream")
    assert headers[b"x-accel-buffering"] == b"no"
    assert headers[b"cache-control"] == b"no-cache, no-transform"
    assert [(m["body"], m["more_body"]) for m in sent[1:]] == [
        (b"one", True),
        (b"two", True),
        (b"", False),
    ]
    assert source.is_closed


async def test_a_client_that_goes_away_closes_the_source():
    gone = asyncio.Event()
    sent = 0

    async def receive() -> dict[str, Any]:
        await gone.wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        nonlocal sent
        sent += 1
        if sent == 4:
            gone.set()

    source = Source(endless=True)
    await asyncio.wait_for(stream(source, send_timeout_s=1)(SCOPE, receive, send), timeout=2)
    assert source.is_closed
    assert sent < 10


async def test_a_client_that_stops_reading_closes_the_source(caplog: pytest.LogCaptureFixture):
    caplog.set_level(logging.INFO)

    async def send(message: Any) -> None:
        if message.get("body") == b"two":
            await asyncio.Event().wait()

    source = Source(endless=True)
    response = stream(source, send_timeout_s=0.02)
    await asyncio.wait_for(response(SCOPE, never, send), timeout=2)
    assert source.is_closed
    assert "client took nothing for 0.02 s" in caplog.text


async def test_a_broken_connection_closes_the_source():
    async def send(message: Any) -> None:
        if message.get("body") == b"two":
            raise OSError("reset")

    source = Source(endless=True)
    await stream(source, send_timeout_s=1)(SCOPE, never, send)
    assert source.is_closed


async def test_cancelling_the_response_closes_the_source():
    async def send(message: Any) -> None:
        await asyncio.sleep(0)

    source = Source(endless=True)
    task = asyncio.create_task(stream(source, send_timeout_s=1)(SCOPE, never, send))
    await asyncio.sleep(0.01)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert source.is_closed


async def test_an_error_after_the_beginning_is_the_last_chunk():
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message.get("body"))

    source = Source(error=RuntimeError("broken"))
    await stream(source, send_timeout_s=1)(SCOPE, never, send)
    assert sent == [None, b"one", b"failed: broken", b""]
    assert source.is_closed


async def test_an_error_before_the_beginning_is_raised_and_nothing_sent():
    sent: list[Any] = []

    async def chunks() -> AsyncGenerator[bytes, None]:
        raise RuntimeError("broken")
        yield b""

    async def send(message: Any) -> None:
        sent.append(message)

    response = EventStream(chunks(), waits=Waits(1.0), failed=lambda error: b"failed")
    with pytest.raises(RuntimeError, match="broken"):
        await response(SCOPE, never, send)
    assert sent == []
