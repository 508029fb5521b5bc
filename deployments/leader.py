"""One rank of a model replica: the process that holds the model. Rank 0 is the leader.

The leader alone talks to routers and alone samples: one plain thread drains the sockets, steps
the engine and answers (`engine_loop`). Ray only starts it, watches it and passes control calls,
which run in a second thread group. A follower rank (world_size > 1) will compute what the leader
broadcasts; there are none yet. torch is imported by `load`, in the rank's own process, so that
coordinators, which import this module, stay small.
"""

from __future__ import annotations

import logging
import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import ray
import zmq

from deployments.config import LinkConfig, ModelConfig
from deployments.engine_loop import Engine, EngineLoop, LoopStats
from deployments.link import wait_readable
from deployments.link_masks import LinkMaskSource
from deployments.link_server import LinkServer, Peer
from models.config import EngineConfig
from models.messages import EngineReply, EngineRequest, LeaseGrant

if TYPE_CHECKING:
    from models.runner import ModelRunner

logger = logging.getLogger(__name__)

EngineKind = Literal["draft", "target"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """What a rank says once its model is loaded."""

    grant: LeaseGrant
    load_s: float
    kv_cache_tokens: int
    pid: int


class LinkPort:
    """`engine_loop.EnginePort` over a link server."""

    def __init__(self, server: LinkServer[EngineRequest]) -> None:
        self._server = server
        self._poller = zmq.Poller()
        self._poller.register(server.socket, zmq.POLLIN)

    def receive(self, timeout_s: float) -> list[tuple[Peer, EngineRequest]]:
        """See `EnginePort.receive`."""
        messages = self._server.receive()
        if not messages and timeout_s > 0.0 and wait_readable(self._poller, timeout_s):
            messages = self._server.receive()
        return messages

    def send(self, replies: list[tuple[object, EngineReply]]) -> None:
        """See `EnginePort.send`."""
        self._server.send((peer, reply) for peer, reply in replies if isinstance(peer, bytes))

    def wake(self) -> None:
        """Does nothing: the loop's own poll interval is short enough."""


class Rank:
    """A Ray actor class; `deployments.engine` turns it into one.

    Args:
        kind: which engine answers.
        model: what to load and how much of it.
        link: where and how to listen.
        rank: of this process among `world_size`; only 0 of 1 for now.
        world_size: processes that share the model.
    """

    def __init__(
        self, kind: EngineKind, model: ModelConfig, link: LinkConfig, rank: int, world_size: int
    ) -> None:
        if (rank, world_size) != (0, 1):
            raise ValueError(f"rank {rank} of {world_size}: tensor parallel is not built yet")
        logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
        self._kind = kind
        self._model = model
        self._link = link
        self._server: LinkServer[EngineRequest] | None = None
        self._loop: EngineLoop | None = None

    # --- default group: the engine's thread

    def load(self) -> RankReport:
        """Load the model and bind the link. Call once, before `run_loop`.

        Raises:
            ValueError: the checkpoint cannot be served.
        """
        from models.runner import ModelRunner

        started_s = time.monotonic()
        runner = ModelRunner(engine_config(self._model))
        masks = LinkMaskSource(high_water_mark=self._link.high_water_mark)
        host = ray.util.get_node_ip_address() if self._link.host == "node" else "127.0.0.1"
        server: LinkServer[EngineRequest] = LinkServer(
            EngineRequest, host=host, high_water_mark=self._link.high_water_mark
        )
        engine = make_engine(self._kind, runner, masks, server.endpoint.epoch)
        self._server = server
        self._loop = EngineLoop(
            engine, LinkPort(server), idle_timeout_s=self._model.lease_idle_timeout_s
        )
        grant = LeaseGrant(
            endpoint=server.endpoint,
            asker_key=masks.public_key,
            max_model_len=runner.max_model_len,
            vocab_size=runner.vocab_size,
            batch_invariant=runner.batch_invariant,
        )
        return RankReport(
            grant=grant,
            load_s=time.monotonic() - started_s,
            kv_cache_tokens=runner.pool.num_blocks * runner.pool.block_size,
            pid=os.getpid(),
        )

    def run_loop(self) -> None:
        """Serve until `stop`. The outstanding call is how the coordinator notices a death."""
        self._started_loop().run()

    # --- control group: any other thread

    @ray.method(concurrency_group="control")
    def admit(self, session_id: str, public_key: str) -> int:
        """Let a router in and lease it a session; returns the lease's id."""
        lease_id = self._started_loop().admit(session_id)
        if self._server is not None:
            self._server.allow(public_key)
        return lease_id

    @ray.method(concurrency_group="control")
    def release(self, session_id: str, lease_id: int) -> None:
        """End a lease and free its session, unless there is a newer one. Idempotent."""
        self._started_loop().release(session_id, lease_id)

    @ray.method(concurrency_group="control")
    def take_ended(self) -> list[tuple[str, int]]:
        """(session id, lease id) of leases that ended by idling since the last call."""
        return self._started_loop().take_ended()

    @ray.method(concurrency_group="control")
    def stats(self) -> LoopStats:
        """Counters; the number of ticks rises while the engine's thread is alive."""
        return self._started_loop().stats()

    @ray.method(concurrency_group="control")
    def stop(self) -> None:
        """Make `run_loop` return."""
        self._started_loop().stop()

    def _started_loop(self) -> EngineLoop:
        if self._loop is None:
            raise RuntimeError("rank used before load()")
        return self._loop


def engine_config(model: ModelConfig) -> EngineConfig:
    """`models.config.EngineConfig` from the service's tree."""
    return EngineConfig(
        model_path=model.model_path,
        device=model.device,
        dtype=model.dtype,
        max_model_len=model.max_model_len,
        kv_cache_tokens=model.kv_cache_tokens,
        block_size=model.block_size,
        max_batch_rows=model.max_batch_rows,
        num_threads=model.num_threads,
    )


def make_engine(kind: EngineKind, runner: ModelRunner, masks: LinkMaskSource, epoch: int) -> Engine:
    """The engine that answers for a draft or for a target."""
    if kind == "draft":
        from models.draft_engine import DraftEngine

        return DraftEngine(runner, masks, epoch)
    from models.target_engine import TargetEngine

    return TargetEngine(runner, masks, epoch)
