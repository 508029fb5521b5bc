"""The demo over HTTP: `serve run` on a shipped config, as a user starts it, and without Ray."""

from __future__ import annotations

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from deployments.api.health import HealthProbe
from deployments.api.http import HttpService, create_app
from deployments.api.keys import ApiKeys
from deployments.config.schema import RouterConfig
from deployments.constraint.reward_workers import RewardWorkers
from deployments.ingress.service import served_model
from loadtest.clients.catalog import Target
from loadtest.report.machine import ROOT
from loadtest.service.served import Served, served
from models.text.tools.prompt import TurnFormats
from router.drafters.choice import drafter_names
from router.limits import SpeculationLimits
from tests.harness.local import DEMO, demo_grammar_host, demo_tokenizer, local_service

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
async def demo_over_http(
    draft: Path | None = DEMO / "draft",
    *,
    formats: TurnFormats | None = None,
    speculation: SpeculationLimits | None = None,
    prefix: str = "",
    api_keys: ApiKeys | None = None,
    rewards: RewardWorkers | None = None,
    **limits: Any,
) -> AsyncIterator[Target]:
    """Serve with real engines in this process until the block ends; `draft` None: no drafts.

    `formats` None: those of the demo's own template. `prefix` is where Serve would have mounted it,
    `limits` are of the config's router.
    """
    tokenizer = demo_tokenizer()
    config = RouterConfig(model_name="demo", max_model_len=1024, **limits)
    model = served_model(config, tokenizer, created=0)
    model = replace(model, formats=formats or model.formats)
    host = demo_grammar_host()
    async with local_service(
        DEMO / "target", draft, grammar_host=host, rewards=rewards, speculation=speculation
    ) as service:
        health = HealthProbe(service.generator, tokenizer, timeout_s=10.0)
        shared = service.services
        drafters = drafter_names(shared.speculation, shared.draft_pools)
        routes = HttpService(
            model=replace(model, drafters=drafters),
            generator=service.generator,
            health=health,
            body_limit_bytes=config.body_limit_bytes,
            send_timeout_s=config.timeouts.token_gap_s,
            api_keys=api_keys,
        )
        app = mounted(create_app(routes), prefix)
        listener = socket.create_server(("127.0.0.1", 0))  # who comes early waits in its backlog
        server = uvicorn.Server(uvicorn.Config(app, log_config=None, lifespan="off", ws="none"))
        task = asyncio.create_task(server.serve([listener]))
        try:
            url = f"http://127.0.0.1:{listener.getsockname()[1]}"
            yield Target(url + prefix, model.name, DEMO / "target")
        finally:
            server.should_exit = True
            await task
            listener.close()
