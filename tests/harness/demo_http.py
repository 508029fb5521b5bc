"""The routes over the demo pair's real engines, in this process: no Ray, no sockets."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import httpx
import uvicorn
from fastapi import FastAPI

from deployments.api.health import HealthProbe
from deployments.api.http import HttpService, create_app
from deployments.config.schema import RouterConfig
from deployments.ingress.service import served_model
from tests.harness.local import DEMO, demo_tokenizer, local_service


@asynccontextmanager
async def demo_app(*, has_draft: bool = True, **options: Any) -> AsyncIterator[FastAPI]:
    """The application; `options` are those of `local_service`."""
    draft = DEMO / "draft" if has_draft else None
    options = {"max_model_len": 256} | options
    tokenizer = demo_tokenizer()
    async with local_service(DEMO / "target", draft, **options) as service:
        config = RouterConfig(model_name="demo", max_model_len=options["max_model_len"])
        yield create_app(
            HttpService(
                model=served_model(config, tokenizer, created=0),
                generator=service.generator,
                health=HealthProbe(service.generator, tokenizer, timeout_s=5.0),
                body_limit_bytes=config.body_limit_bytes,
                send_timeout_s=config.timeouts.token_gap_s,
            )
        )


@asynccontextmanager
async def demo_url(**options: Any) -> AsyncIterator[str]:
    """Its address on a free loopback port."""
    async with demo_app(**options) as app:
        listener = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            app, log_config=None, lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve([listener]))
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            await serving
            listener.close()


@asynccontextmanager
async def demo_http(**options: Any) -> AsyncIterator[httpx.AsyncClient]:
    """A client of it."""
    async with demo_app(**options) as app:
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            client.timeout = httpx.Timeout(60.0)
            yield client
