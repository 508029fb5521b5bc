"""The demo over HTTP: `serve run` on a shipped config, as a user starts it, and without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import openai
import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from loadtest.clients.catalog import Target
from loadtest.report.machine import ROOT
from loadtest.service.served import Served, served
from tests.harness.local import DEMO, demo_app, demo_grammar_host

ServedDemo = Served


@contextlib.contextmanager
def served_demo(config: str = "demo.yaml") -> Iterator[ServedDemo]:
    """Serve configs/`config` on a free port, with a private Ray, until the block ends."""
    with served(ROOT / "configs" / config) as service:
        yield service


def mounted(app: ASGIApp, prefix: str) -> ASGIApp:
    """The application as Serve calls it under a `route_prefix`: paths are whole, and it is told."""

    async def call(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, "root_path": prefix}, receive, send)

    return call if prefix else app


@asynccontextmanager
async def demo_over_http(*, prefix: str = "", **options: Any) -> AsyncIterator[Target]:
    """Serve with real engines and grammars in this process until the block ends.

    `prefix` is where Serve would have mounted it; `options` are those of `demo_app`.
    """
    usual: dict[str, Any] = {"max_model_len": 1024, "grammar_host": demo_grammar_host()}
    async with demo_app(**usual | options) as app:
        listener = socket.create_server(("127.0.0.1", 0))  # who comes early waits in its backlog
        config = uvicorn.Config(mounted(app, prefix), log_config=None, lifespan="off", ws="none")
        server = uvicorn.Server(config)
        task = asyncio.create_task(server.serve([listener]))
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            yield Target(url + prefix, "demo", DEMO / "target")
        finally:
            server.should_exit = True
            await task
            listener.close()


@asynccontextmanager
async def demo_client(**options: Any) -> AsyncIterator[openai.AsyncOpenAI]:
    """OpenAI's client of it; `options` are those of `demo_over_http`."""
    async with (
        demo_over_http(**options) as target,
        openai.AsyncOpenAI(
            base_url=f"{target.root_url}/v1", api_key="none", max_retries=0
        ) as client,
    ):
        yield client
