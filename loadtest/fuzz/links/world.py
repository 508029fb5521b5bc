"""Engines and a constraint replica behind their real sockets, in this process.

A deployment's work through Ray is a call here: a lease, and its end. Sockets, keys, frames and the
engine loops are those that serve. So are the replica with its child processes and the engines' own
way to masks.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

from deployments.config.schema import GrammarServiceConfig
from deployments.config.sections.models import LinkConfig
from deployments.constraint.replica import ConstraintReplica
from deployments.engine.loop import EngineLoop
from deployments.engine.rank import LinkPort
from deployments.link.client import LinkChannel, LinkClient
from deployments.link.masks import LinkMaskSource
from deployments.link.server import LinkServer
from loadtest.fuzz.engines.pair import MAX_MODEL_LEN, pair_folder
from loadtest.fuzz.engines.world import loaded_pair
from loadtest.fuzz.http.bodies import MODEL
from models.engine.draft import DraftEngine
from models.engine.runner import ModelRunner
from models.engine.target import TargetEngine
from models.protocol.messages import (
    ConstraintReply,
    EngineReply,
    EngineRequest,
    LeaseGrant,
    LeaseRequest,
)
from router.drafters.draft_model import POOL

_JOIN_S = 10.0
_IDLE_TIMEOUT_S = 600.0


class LinkEngine:
    """One engine behind its socket, driven by a thread of its own."""

    def __init__(self, kind: type[TargetEngine] | type[DraftEngine], runner: ModelRunner) -> None:
        self._masks = LinkMaskSource()
        self._server: LinkServer[EngineRequest] = LinkServer(EngineRequest)
        self.runner = runner
        self.engine = kind(self.runner, self._masks, self._server.endpoint.epoch)
        self.loop = EngineLoop(
            self.engine, LinkPort(self._server), idle_timeout_s=_IDLE_TIMEOUT_S, poll_s=0.02
        )
        self.grant = LeaseGrant(
            endpoint=self._server.endpoint,
            asker_key=self._masks.public_key,
            max_model_len=MAX_MODEL_LEN,
        )
        self.death = ""
        self._thread = threading.Thread(target=self._run, name="fuzz-engine", daemon=True)
        self._thread.start()

    def allow(self, public_key: str) -> None:
        """Let a peer in, as a lease does."""
        self._server.allow(public_key)

    def close(self) -> None:
        """End the thread and the sockets."""
        self.loop.stop()
        self._thread.join(_JOIN_S)
        self._server.close()
        self._masks.shutdown()

    def _run(self) -> None:
        try:
            self.loop.run()
        except Exception as error:  # noqa: BLE001 - whatever ends an engine is a finding
            self.death = f"{type(error).__name__}: {error}"


class _Replica(ConstraintReplica):
    """Serve awaits the replica's `__del__`; here `stop` does, and the collector finds none."""

    stop: ClassVar[Callable[[ConstraintReplica], Awaitable[None]]] = ConstraintReplica.__del__

    def __del__(self) -> None:  # type: ignore[override]  # nothing is left to do
        pass


@dataclass(slots=True)
class CallLease:
    """Implements `router.ports.Lease`: `end` is what a deployment does at its end."""

    grant: LeaseGrant
    channel: LinkChannel[Any, Any]
    end: Callable[[], Awaitable[None]]
    is_released: bool = False

    async def release(self) -> None:
        """See `router.ports.Lease.release`."""
        if not self.is_released:
            self.is_released = True
            self.channel.close()
            await self.end()


class EngineCalls:
    """Implements `router.ports.EnginePool` over one engine's socket."""

    def __init__(self, engine: LinkEngine, links: LinkClient) -> None:
        self._engine = engine
        self._links = links

    async def lease(self, session_id: str, *, timeout_s: float) -> CallLease:
        """See `router.ports.Pool.lease`."""
        self._engine.allow(self._links.public_key)
        lease_id = self._engine.loop.leases.grant(session_id)

        async def end() -> None:
            self._engine.loop.release(session_id, lease_id)

        grant = self._engine.grant
        return CallLease(grant, self._links.channel(grant.endpoint, session_id, EngineReply), end)


class ReplicaCalls:
    """Implements `router.ports.ConstraintPool` over the replica's own `lease`."""

    def __init__(self, replica: ConstraintReplica, links: LinkClient) -> None:
        self._replica = replica
        self._links = links

    async def lease(self, session_id: str, *, timeout_s: float) -> CallLease:
        """See `router.ports.Pool.lease`."""
        stream = self._replica.lease(
            LeaseRequest(session_id=session_id, public_key=self._links.public_key)
        )
        async with asyncio.timeout(timeout_s):
            grant = await anext(stream)
        channel = self._links.channel(grant.endpoint, session_id, ConstraintReply)
        return CallLease(grant, channel, partial(_close, stream))


async def _close(stream: AsyncGenerator[LeaseGrant, None]) -> None:
    await stream.aclose()


@asynccontextmanager
async def constraint_replica() -> AsyncIterator[ConstraintReplica]:
    """Yield a constraint replica with its children."""
    replica = _Replica.__new__(_Replica)
    await _Replica.__init__(
        replica,
        GrammarServiceConfig(num_children=1),
        LinkConfig(host="loopback"),
        str(pair_folder() / "target"),
        MODEL,
    )
    try:
        yield replica
    finally:
        await replica.stop()


@asynccontextmanager
async def link_engines() -> AsyncIterator[tuple[LinkEngine, LinkEngine]]:
    """Yield a target and a draft behind sockets."""
    pair = loaded_pair()
    target = LinkEngine(TargetEngine, pair.target)
    draft = LinkEngine(DraftEngine, pair.drafts[POOL])
    try:
        yield target, draft
    finally:
        await asyncio.to_thread(target.close)
        await asyncio.to_thread(draft.close)
