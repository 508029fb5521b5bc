"""The HTTP service over real engines in this process, and a client that may send anything."""

from __future__ import annotations

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import uvicorn
from starlette.types import ASGIApp

from deployments.api.http import create_app
from deployments.api.transport.settings import HttpConfig
from deployments.config.schema import RouterConfig
from deployments.local.engines import LocalEngines
from deployments.local.pair import LoadedPair
from loadtest.fuzz.engines.world import loaded_pair
from loadtest.fuzz.http.answers import HttpAnswer
from loadtest.fuzz.http.attacks import Attack
from loadtest.fuzz.http.bodies import MODEL
from models.grammar.host import GrammarHost

_FREED_LIMIT_S = 10.0
_ROUTER = {
    "model_name": MODEL,
    "default_max_tokens": 16,
    "max_tokens_limit": 256,
    "body_limit_bytes": 262_144,
    "max_sessions": 16,
}


@dataclass(frozen=True, slots=True)
class HttpWorld:
    """A running service."""

    app: ASGIApp
    engines: LocalEngines
    host: GrammarHost

    async def left(self) -> list[str]:
        """Return the resources that ended requests still hold after the time to free them."""
        deadline = asyncio.get_running_loop().time() + _FREED_LIMIT_S
        while True:
            stats = {name: pool.stats() for name, pool in self.engines.threads().items()}
            held = [
                f"{name}: {one.num_sessions} leases, {one.num_used_blocks} KV blocks are held"
                for name, one in stats.items()
                if one.num_sessions or one.num_used_blocks
            ]
            held += [f"constraint: {len(self.host)} matchers are held"] * bool(len(self.host))
            if not held or asyncio.get_running_loop().time() > deadline:
                return held
            await asyncio.sleep(0.01)


@asynccontextmanager
async def http_world(*, http: Mapping[str, Any] | None = None) -> AsyncIterator[HttpWorld]:
    """Serve until left; `http` is the config's `router.http`, where it is not its default."""
    pair, own = loaded_pair(), {"http": HttpConfig.model_validate(http or {})}
    async with served_pair(pair, pair.config.router.model_copy(update=_ROUTER | own)) as world:
        yield world


@asynccontextmanager
async def served_pair(pair: LoadedPair, router: RouterConfig) -> AsyncIterator[HttpWorld]:
    """Serve a pair until left."""
    engines = pair.engines(has_threads=True)
    assert engines.constraint_pool is not None
    engines.constraint_pool.begin_rewards()  # within a case, its task would be said to be left
    service = engines.service(router)
    try:
        yield HttpWorld(create_app(service.http), engines, pair.grammars)
    finally:
        await engines.close()


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


async def post(app: ASGIApp, path: str, body: dict[str, Any], limit_s: float) -> HttpAnswer:
    """Send a body as JSON, and gather the whole answer.

    Raises:
        TimeoutError: there is none within `limit_s`.
    """
    headers = [(b"host", b"localhost"), (b"content-type", b"application/json")]
    async with asyncio.timeout(limit_s):
        return await ask(app, Attack("POST", path, headers, [json.dumps(body).encode()]))


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
