"""The HTTP service over real engines in this process, and a client that may send anything."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from deployments.api.http import create_app
from deployments.api.transport.settings import HttpConfig
from deployments.config.schema import GrammarServiceConfig, RouterConfig
from deployments.constraint.reward_workers import RewardWorkers
from deployments.constraint.workers import children_config
from deployments.ingress.service import RouterService
from deployments.local.pool import LocalConstraintPool, LocalEnginePool
from loadtest.fuzz.engines.pair import (
    MAX_MODEL_LEN,
    VOCAB_SIZE,
    fuzz_tokenizer,
    grammar_host,
    pair_folder,
)
from loadtest.fuzz.engines.world import Engines, fresh_engines
from loadtest.fuzz.http.answers import HttpAnswer
from loadtest.fuzz.http.attacks import Attack
from loadtest.fuzz.http.bodies import MODEL
from models.grammar.host import GrammarHost
from models.grammar.masks import LocalMaskSource
from router.drafters.draft_model import POOL

BODY_LIMIT_BYTES = 262_144
_FREED_LIMIT_S = 10.0


@dataclass(frozen=True, slots=True)
class HttpWorld:
    """A running service."""

    app: ASGIApp
    engines: Engines
    pools: tuple[LocalEnginePool, LocalEnginePool]
    host: GrammarHost

    async def left(self) -> list[str]:
        """Return the resources that ended requests still hold after the time to free them."""
        deadline = asyncio.get_running_loop().time() + _FREED_LIMIT_S
        while True:
            stats = [pool.stats() for pool in self.pools]
            held = [
                f"{name}: {one.num_sessions} leases, {one.num_used_blocks} KV blocks are held"
                for name, one in zip(("target", "draft"), stats, strict=True)
                if one.num_sessions or one.num_used_blocks
            ]
            held += [f"constraint: {len(self.host)} matchers are held"] * bool(len(self.host))
            if not held or asyncio.get_running_loop().time() > deadline:
                return held
            await asyncio.sleep(0.01)


@asynccontextmanager
async def http_world(*, http: Mapping[str, Any] | None = None) -> AsyncIterator[HttpWorld]:
    """Serve until left; `http` is the config's `router.http`, where it is not its default."""
    host = grammar_host()
    rewards = _rewards()
    rewards.begin()  # not within the first case, which would be said to leave its task behind
    constraint = LocalConstraintPool(host, rewards=rewards)
    engines = fresh_engines(LocalMaskSource(constraint.host), LocalMaskSource(constraint.host))
    target = LocalEnginePool(engines.target, epoch=1, max_model_len=MAX_MODEL_LEN)
    draft = LocalEnginePool(engines.draft, epoch=1, max_model_len=MAX_MODEL_LEN)
    config = RouterConfig(
        model_name=MODEL,
        tokenizer_path=str(pair_folder() / "target"),
        max_model_len=MAX_MODEL_LEN,
        default_max_tokens=16,
        max_tokens_limit=256,
        body_limit_bytes=BODY_LIMIT_BYTES,
        max_sessions=16,
        http=HttpConfig.model_validate(http or {}),
    )
    service = RouterService(config, target=target, drafts={POOL: draft}, constraint=constraint)
    try:
        yield HttpWorld(create_app(service.http), engines, (target, draft), host)
    finally:
        await target.close()
        await draft.close()
        await constraint.close()


def _rewards() -> RewardWorkers:
    return RewardWorkers(
        children_config(
            GrammarServiceConfig(),
            tokenizer_path=str(pair_folder() / "target"),
            vocab_size=VOCAB_SIZE,
            eos_ids=fuzz_tokenizer().eos_ids,
        )
    )


@asynccontextmanager
async def listening(world: HttpWorld) -> AsyncIterator[str]:
    """Run a real server over the routes in this event loop; its URL."""
    listener = socket.create_server(("127.0.0.1", 0))
    config = uvicorn.Config(world.app, log_config=None, lifespan="off", ws="none")
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve(sockets=[listener]), name="fuzz-server")
    try:
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving
        listener.close()


async def ask(app: ASGIApp, attack: Attack) -> HttpAnswer:
    """Send a request as a server does, whatever is in it, and gather its answer."""
    answer = HttpAnswer(0, {}, b"")
    is_answered = asyncio.Event()
    chunks = list(attack.chunks)

    async def receive() -> dict[str, Any]:
        if chunks:
            chunk = chunks.pop(0)
            return {"type": "http.request", "body": chunk, "more_body": bool(chunks)}
        if attack.leaves_after_s is None:
            await is_answered.wait()
        else:
            await asyncio.sleep(attack.leaves_after_s)
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            answer.status = message["status"]
            pairs = message.get("headers", ())
            answer.headers = {k.decode("latin-1").lower(): v.decode("latin-1") for k, v in pairs}
        else:
            answer.body += message.get("body", b"")
            if not message.get("more_body", False):
                is_answered.set()

    path = attack.path
    scope = {
        "type": "http",
        "asgi": {"version": "3.0", "spec_version": "2.3"},
        "http_version": "1.1",
        "method": attack.method,
        "scheme": "http",
        "path": path,
        "raw_path": path.encode(),
        "query_string": b"",
        "root_path": "",
        "headers": attack.headers,
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await app(scope, receive, send)
    return answer
