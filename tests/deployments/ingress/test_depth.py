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

import pytest

from deployments.api.http import create_app
from deployments.config.schema import SpeculationConfig
from deployments.ingress.service import RouterService
from models.protocol.messages import EngineReply, EngineRequest, LeaseGrant
from router.ports import EngineLease, EnginePool
from tests.deployments.ingress.test_service import chat, config, demo_pair
from tests.harness.http_clients import client_over

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


@pytest.mark.parametrize(
    "fields", [{}, {"response_format": {"type": "json_object"}}], ids=["text", "grammar"]
)
async def test_a_stream_is_few_generators_deep(fields: dict[str, Any]) -> None:
    engines = demo_pair().engines(has_threads=True)
    counting = CountingPool(engines.target_pool)
    ngram = config(speculation=SpeculationConfig(method="ngram"))
    service = RouterService(ngram, target=counting, drafts={}, constraint=engines.constraint_pool)
    body = chat(stream=True)
    try:
        async with client_over(create_app(service.http)) as client:
            answer = await client.post("/v1/chat/completions", json=body | fields)
    finally:
        await engines.close()
    assert answer.status_code == 200
    streamed = [chain for chain in counting.chains if chain and chain[-1] == "event_stream"]
    assert streamed, "no token was awaited by the stream's own generator"
    chain = max(streamed, key=len)[::-1]
    assert len(chain) <= MAX_DEPTH, " < ".join(chain)
    assert chain.index("SpeculativeGenerator.generate") <= MAX_ABOVE_ROUTER, " < ".join(chain)
