"""Clients of the routes over a scripted generator: over ASGI, and over a real socket."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any

import httpx
import openai
import uvicorn
from starlette.types import ASGIApp

from deployments.api.http import create_app
from router.types import Generator
from tests.fakes.http import ScriptedGenerator, http_service


@asynccontextmanager
async def client_over(app: ASGIApp, prefix: str = "") -> AsyncIterator[httpx.AsyncClient]:
    """Open a client. A `prefix` stays in the path, as Serve's proxy and uvicorn have it."""
    transport = httpx.ASGITransport(app, root_path=prefix)
    async with httpx.AsyncClient(transport=transport, base_url=f"http://test{prefix}") as client:
        yield client


def client_of(
    generator: ScriptedGenerator, *, prefix: str = "", **options: Any
) -> AbstractAsyncContextManager[httpx.AsyncClient]:
    return client_over(create_app(http_service(generator, **options)), prefix)


def events_of(text: str) -> list[Any]:
    assert text.endswith("\n\n")
    blocks = [block.split("\n") for block in text.split("\n\n")[:-1]]
    bodies = [line.removeprefix("data: ") for line, *_ in blocks]  # an id may follow
    return [body if body == "[DONE]" else json.loads(body) for body in bodies]


@contextmanager
def served(generator: Generator, **options: Any) -> Iterator[str]:
    """A real server in a thread, on a free loopback port."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(
        create_app(http_service(generator, **options)),
        log_config=None,
        lifespan="off",
        ws="none",
        timeout_graceful_shutdown=1,
    )
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, args=([listener],), daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join(timeout=10)
        listener.close()
        assert not thread.is_alive()


@contextmanager
def openai_client(generator: ScriptedGenerator, **options: Any) -> Iterator[openai.OpenAI]:
    with (
        served(generator, **options) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client
