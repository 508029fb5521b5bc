"""How many async generators a token passes on its way from an engine's reply to the SSE bytes.

Each of them is a frame that a reader must hold in mind and that costs every token some time.
The chain is counted where it ends, in the `receive` of the target's channel, by walking the
stack: a suspended chain of generators is resumed through all of its frames.
"""

from __future__ import annotations

import inspect
import sys
from types import FrameType
from typing import Any

import httpx
import pytest

from deployments.api.http import create_app
from deployments.config.schema import RouterConfig, SpeculationConfig
from deployments.ingress.service import RouterService
from deployments.local.pool import LocalConstraintPool, LocalEnginePool
from models.config import EngineConfig
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.grammar.masks import LocalMaskSource
from models.protocol.messages import EngineReply, EngineRequest, LeaseGrant
from router.ports import EngineLease, EnginePool
from tests.harness.local import DEMO, demo_grammar_host

MAX_MODEL_LEN = 256
MAX_ABOVE_ROUTER = 2  # event_stream < run_choice
# event_stream < run_choice < generate < run_session < RemoteVerifier.verify < EngineClient.exchange
MAX_DEPTH = 6


def generators_above() -> list[str]:
    """Names of the async generators on the stack, the innermost first."""
    frame: FrameType | None = sys._getframe(1)
    names = []
    while frame is not None:
        if frame.f_code.co_flags & inspect.CO_ASYNC_GENERATOR:
            names.append(frame.f_code.co_qualname)
        frame = frame.f_back
    return names


class CountingLease:
    """A lease whose channel notes what is above each `receive`."""

    def __init__(self, lease: EngineLease, chains: list[list[str]]) -> None:
        self._lease = lease
        self._chains = chains

    @property
    def grant(self) -> LeaseGrant:
        return self._lease.grant

    @property
    def channel(self) -> CountingLease:
        return self

    def send(self, message: EngineRequest) -> None:
        self._lease.channel.send(message)

    async def receive(self) -> EngineReply:
        self._chains.append(generators_above())
        return await self._lease.channel.receive()

    def peek(self) -> EngineReply | None:
        return self._lease.channel.peek()

    async def release(self) -> None:
        await self._lease.release()


class CountingPool:
    def __init__(self, pool: EnginePool) -> None:
        self._pool = pool
        self.chains: list[list[str]] = []

    async def lease(self, session_id: str, *, timeout_s: float) -> CountingLease:
        return CountingLease(await self._pool.lease(session_id, timeout_s=timeout_s), self.chains)


def target_engine(constraint: LocalConstraintPool) -> TargetEngine:
    engine_config = EngineConfig(
        model_path=str(DEMO / "target"),
        dtype="bfloat16",
        max_model_len=MAX_MODEL_LEN,
        kv_cache_tokens=2048,
    )
    return TargetEngine(ModelRunner(engine_config), LocalMaskSource(constraint.host), epoch=1)


@pytest.mark.parametrize(
    "fields", [{}, {"response_format": {"type": "json_object"}}], ids=["text", "grammar"]
)
async def test_a_stream_is_few_generators_deep(fields: dict[str, Any]) -> None:
    constraint = LocalConstraintPool(demo_grammar_host())
    pool = LocalEnginePool(target_engine(constraint), epoch=1, max_model_len=MAX_MODEL_LEN)
    counting = CountingPool(pool)
    config = RouterConfig(
        model_name="demo",
        tokenizer_path=str(DEMO / "target"),
        max_model_len=MAX_MODEL_LEN,
        speculation=SpeculationConfig(method="ngram"),
    )
    service = RouterService(config, target=counting, drafts={}, constraint=constraint)
    transport = httpx.ASGITransport(create_app(service.http))
    body = {
        "model": "demo",
        "messages": [{"role": "user", "content": "Write a short story about a dog."}],
        "max_tokens": 24,
        "stream": True,
    }
    try:
        async with httpx.AsyncClient(transport=transport, base_url="http://test") as client:
            answer = await client.post("/v1/chat/completions", json=body | fields)
    finally:
        await pool.close()
        await constraint.close()
    assert answer.status_code == 200
    streamed = [chain for chain in counting.chains if chain and chain[-1] == "event_stream"]
    assert streamed, "no token was awaited by the stream's own generator"
    chain = max(streamed, key=len)[::-1]
    assert len(chain) <= MAX_DEPTH, " < ".join(chain)
    assert chain.index("SpeculativeGenerator.generate") <= MAX_ABOVE_ROUTER, " < ".join(chain)
