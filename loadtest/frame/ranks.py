"""Draft and target as processes of their own over real links, without Ray: for the benchmark.

Each process runs the same `Rank` that Ray runs as an actor. Only leases come through a pipe instead
of a Serve handle. So a round here costs what it costs when served, HTTP and leases apart.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
from collections.abc import Collection
from multiprocessing.connection import Connection
from typing import Any

from deployments.config.sections.models import LinkConfig, ModelConfig
from deployments.engine.rank import EngineKind, Rank, RankReport
from deployments.link.client import LinkChannel, LinkClient
from models.protocol.errors import Unavailable
from models.protocol.messages import EngineReply, EngineRequest, LeaseGrant

_LOAD_TIMEOUT_S = 300.0
_CALL_TIMEOUT_S = 10.0
_STOP_TIMEOUT_S = 10.0


class ProcessLease:
    """Implements `router.ports.Lease`."""

    def __init__(
        self, pool: ProcessPool, session_id: str, lease_id: int, grant: LeaseGrant
    ) -> None:
        self._pool = pool
        self._session_id = session_id
        self._lease_id = lease_id
        self.grant = grant
        self.channel: LinkChannel[EngineRequest, EngineReply] = pool.links.channel(
            grant.endpoint, session_id, EngineReply
        )

    async def release(self) -> None:
        """See `router.ports.Lease.release`."""
        await asyncio.sleep(0)  # lets the session's last messages leave first
        self.channel.close()
        self._pool.call("release", self._session_id, self._lease_id)


class ProcessPool:
    """Implements `router.ports.EnginePool` over one rank process, on some cores; none: on any."""

    def __init__(self, kind: EngineKind, model: ModelConfig, cores: Collection[int] = ()) -> None:
        self._kind = kind
        self._model = model
        self.links = LinkClient()
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(
            target=_run_rank, args=(theirs, kind, model, cores), name=f"{kind}-rank", daemon=True
        )
        self._process.start()
        theirs.close()
        self.report: RankReport | None = None

    def wait_ready(self) -> RankReport:
        """Block until the model is loaded.

        Raises:
            Unavailable: the process ended or did not get ready within its limit.
        """
        try:
            if not self._pipe.poll(_LOAD_TIMEOUT_S):
                raise Unavailable(f"{self._kind} not loaded within {_LOAD_TIMEOUT_S:g} s")
            report: RankReport = self._pipe.recv()
        except EOFError:
            raise Unavailable(f"the {self._kind} process ended while loading") from None
        self.report = report
        return report

    async def lease(self, session_id: str, *, timeout_s: float) -> ProcessLease:
        """See `router.ports.Pool.lease`."""
        if self.report is None or self.report.grant is None:
            raise Unavailable(f"{self._kind} is not loaded")
        lease_id = self.call("admit", session_id, self.links.public_key)
        return ProcessLease(self, session_id, lease_id, self.report.grant)

    def call(self, method: str, *arguments: Any) -> Any:
        """Call a control method of the rank; tens of microseconds."""
        self._pipe.send((method, arguments))
        if not self._pipe.poll(_CALL_TIMEOUT_S):
            raise Unavailable(f"{self._kind}: no answer to {method} within {_CALL_TIMEOUT_S:g} s")
        answer = self._pipe.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    async def close(self) -> None:
        """End the process. Idempotent."""
        await self.links.close()
        if self._process.is_alive():
            self._pipe.send(("stop", ()))
            await asyncio.to_thread(self._process.join, _STOP_TIMEOUT_S)
        if self._process.is_alive():
            self._process.kill()


def _run_rank(
    pipe: Connection, kind: EngineKind, model: ModelConfig, cores: Collection[int]
) -> None:
    if cores:
        os.sched_setaffinity(0, cores)
    # Any: Ray's decorators type the control methods as remote ones, which here they are not.
    rank: Any = Rank(kind, model, LinkConfig(host="loopback"), 0, 1)
    pipe.send(rank.load())
    threading.Thread(target=_serve_control, args=(pipe, rank), daemon=True).start()
    rank.run_loop()


def _serve_control(pipe: Connection, rank: Any) -> None:
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            rank.stop()
            return
        try:
            answer = getattr(rank, method)(*arguments)
        except Exception as error:  # noqa: BLE001 - it is the caller's, in the other process
            answer = error
        pipe.send(answer)
