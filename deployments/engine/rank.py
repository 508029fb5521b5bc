"""One rank of a model replica: a process that holds the model or its share. Rank 0 is the leader.

The leader alone talks to routers and alone samples. One plain thread drains the sockets, steps the
engine and answers (`loop`). The others (tensor_parallel_size > 1) compute the passes it announces
(`models.parallel.ranks`). Ray only starts ranks, watches them and passes control calls, which run
in a second thread group. torch is imported by `load`, in the rank's own process, so that
coordinators, which import this module, stay small.
"""

from __future__ import annotations

import hashlib
import logging
import os
import socket
import tempfile
import time
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import ray
import zmq

from deployments.config.sections.models import LinkConfig, ModelConfig
from deployments.engine.loop import Engine, EngineLoop, LoopStats
from deployments.engine.room import refuse_without_room
from deployments.link.frames import wait_readable
from deployments.link.leases import LeaseKey
from deployments.link.masks import LinkMaskSource
from deployments.link.server import LOOPBACK, LinkServer, Peer
from deployments.serve.heap import freeze_heap, importing
from deployments.serve.logs import configure_rank
from deployments.serve.watchdog import start_watchdog
from models.engine.drafting.ended_texts import EndedText, EndedTexts
from models.fetch.hub import bring
from models.protocol.messages import EngineReply, EngineRequest, LeaseGrant

if TYPE_CHECKING:
    from models.engine.runner import ModelRunner
    from models.parallel.ranks import TensorParallel

logger = logging.getLogger(__name__)

EngineKind = Literal["draft", "target"]


_NICENESS = 4  # above that of Ray's other processes, 15; 19 is the limit
FETCH_TIMEOUT_S = 14_400.0  # a download that stalls ends long before, this one is only slow
LOAD_TIMEOUT_S = 1800.0  # a large checkpoint from a slow disk; a dead rank is noticed at once


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReport:
    """A rank's report once its model, or its share, is loaded."""

    grant: LeaseGrant | None  # followers have nothing to grant
    load_s: float
    kv_cache_tokens: int
    kv_bytes_per_token: int  # this rank's
    weight_bytes: int  # this rank's
    bits_a_weight: float
    attention: str  # name of the kernel, and graphs
    num_graphs: int
    graph_bytes: int
    pid: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPlace:
    """The place of a rank's process."""

    node_id: str
    pid: int
    gpus: str  # that it sees, as in CUDA_VISIBLE_DEVICES


class LinkPort:
    """`loop.EnginePort` over a link server."""

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
    """One rank; `deployments.engine.rank_group` makes a Ray actor of this class.

    Args:
        kind: which engine answers.
        model: what to load and how much of it.
        link: where and how the leader listens.
        rank: of this process among `world_size`; 0 leads.
        world_size: processes that share the model.
        logs_json: whether log lines are JSON.
    """

    def __init__(
        self,
        kind: EngineKind,
        model: ModelConfig,
        link: LinkConfig,
        rank: int,
        world_size: int,
        logs_json: bool = False,
    ) -> None:
        configure_rank(as_json=logs_json, component="rank", model_kind=kind, rank=rank)
        if model.device == "cpu":
            # A short answer must not wait for a long pass if passes and HTTP share cores.
            os.nice(_NICENESS)
        self._kind = kind
        self._model = model
        self._link = link
        self._rank = rank
        self._world_size = world_size
        self._runner: ModelRunner | None = None
        self._server: LinkServer[EngineRequest] | None = None
        self._loop: EngineLoop | None = None
        self._ended_texts: EndedTexts | None = None  # only in a draft model's leader

    # --- default group: the engine's thread

    def fetch(self) -> None:
        """Bring the checkpoint onto this node, where it is one of the hub's. Call before `load`.

        Raises:
            ValueError: it cannot be had, or the disk is full.
        """
        bring(Path(self._model.model_path), logger.info)

    def go_beside(self, gpus: str) -> None:
        """Use the GPUs of a rank that is there, where there is room. Call before `load`.

        Raises:
            ValueError: there is too little memory, or the checkpoint cannot be served.
        """
        os.environ["CUDA_VISIBLE_DEVICES"] = gpus  # torch has not looked yet
        refuse_without_room(self._model)

    def load(self, meeting: str = "") -> RankReport:
        """Load the model, and on the leader bind the link. Call once, before `run_loop`.

        The leader of several ranks returns when all others are in `run_loop`.

        Args:
            meeting: where ranks meet, see `meet`; unused by a rank that is alone.

        Raises:
            ValueError: the checkpoint cannot be served.
            RuntimeError: another rank is gone.
        """
        started_s = time.monotonic()
        with importing():
            from models.cpu.shared_weights import CAN_SHARE, SharedWeights
            from models.cpu.weight_memory import weights_in
            from models.engine.runner import ModelRunner

        ranks = None
        if self._world_size > 1:
            ranks = join_ranks(self._model, self._rank, self._world_size, meeting)
        is_own = self._model.engine == "own"
        is_shared = self._model.spare and self._model.device == "cpu" and is_own and CAN_SHARE
        memory = SharedWeights(weights_name(self._model, self._rank)) if is_shared else None
        with nullcontext() if memory is None else weights_in(memory):
            runner = self._runner = ModelRunner(self._model, ranks)
        if memory is not None:
            memory.finish()
        grant = self._listen(runner) if self._rank == 0 else None
        freeze_heap()
        logger.info("%s rank %d of %d: loaded", self._kind, self._rank, self._world_size)
        return RankReport(
            grant=grant,
            load_s=time.monotonic() - started_s,
            kv_cache_tokens=runner.pool.num_blocks * runner.pool.block_size,
            kv_bytes_per_token=runner.kv_bytes_per_token,
            weight_bytes=runner.weight_bytes,
            bits_a_weight=runner.bits_a_weight,
            attention=runner.attention,
            num_graphs=runner.graphs.num_graphs,
            graph_bytes=runner.graphs.num_bytes,
            pid=os.getpid(),
        )

    def run_loop(self) -> None:
        """Serve until `stop`, or follow the leader until it stops.

        The outstanding call is how the coordinator notices a death.
        """
        if self._runner is None:
            raise RuntimeError("rank used before load()")
        start_watchdog()  # not before: a driver that finds GPUs may hold Python's lock for long
        if self._loop is None:
            self._runner.follow()
        else:
            self._loop.run()
        self._runner.close()

    def _listen(self, runner: ModelRunner) -> LeaseGrant:
        masks = LinkMaskSource(high_water_mark=self._link.high_water_mark)
        host = ray.util.get_node_ip_address() if self._link.host == "node" else LOOPBACK
        server: LinkServer[EngineRequest] = LinkServer(
            EngineRequest, host=host, high_water_mark=self._link.high_water_mark
        )
        engine = make_engine(self._kind, runner, masks, server.endpoint.epoch)
        self._ended_texts = getattr(engine, "ended_texts", None)
        self._server = server
        self._loop = EngineLoop(
            engine,
            LinkPort(server),
            idle_timeout_s=self._model.lease_idle_timeout_s,
            keep_alive=runner.keep_alive,
        )
        server.on_renewed = self._loop.leases.renew
        return LeaseGrant(
            endpoint=server.endpoint,
            asker_key=masks.public_key,
            max_model_len=runner.max_model_len,
            batch_invariant=runner.batch_invariant,
            kv_cache_tokens=runner.pool.num_blocks * runner.pool.block_size,
        )

    # --- control group: any other thread

    @ray.method(concurrency_group="control")
    def place(self) -> RankPlace:
        """Return the place of this process."""
        return RankPlace(
            node_id=ray.get_runtime_context().get_node_id(),
            pid=os.getpid(),
            gpus=os.environ.get("CUDA_VISIBLE_DEVICES", ""),
        )

    @ray.method(concurrency_group="control")
    def meet(self, on_one_node: bool) -> str:
        """Return a new place where ranks can meet, for `load`. Leader only.

        If all are on one node, it is a file in a folder of its own. So nothing is reachable from
        outside. Otherwise it is an address of this node.
        """
        if on_one_node:
            return f"file://{tempfile.mkdtemp(prefix='outrider-ranks-')}/meeting"
        host = ray.util.get_node_ip_address()
        with socket.socket() as probe:
            probe.bind((host, 0))
            port = probe.getsockname()[1]
        return f"tcp://{host}:{port}"

    @ray.method(concurrency_group="control")
    def admit(self, session_id: str, public_key: str) -> int | str:
        """Let a router in and lease it a session; returns the lease's id, or why there is none."""
        loop = self._started_loop()
        if refusal := loop.refusal():
            return refusal
        if self._server is not None:
            self._server.allow(public_key)  # first: an invalid key must leave no lease
        return loop.leases.grant(session_id)

    @ray.method(concurrency_group="control")
    def release(self, session_id: str, lease_id: int) -> None:
        """End a lease and free its session, unless there is a newer one. Idempotent."""
        self._started_loop().release(session_id, lease_id)

    @ray.method(concurrency_group="control")
    def settle(self, released: list[LeaseKey], acknowledged: list[LeaseKey]) -> list[LeaseKey]:
        """End `released` leases; returns those that ended otherwise and are not `acknowledged`.

        Idempotent, so that a call whose answer was lost is simply made again.
        """
        loop = self._started_loop()
        for session_id, lease_id in released:
            loop.release(session_id, lease_id)
        loop.leases.acknowledge(acknowledged)
        return loop.leases.ended()

    @ray.method(concurrency_group="control")
    def stats(self) -> LoopStats:
        """Counters; the number of ticks rises while the engine's thread is alive. Leader only."""
        return self._started_loop().stats()

    @ray.method(concurrency_group="control")
    def keep_texts(self, is_on: bool) -> None:
        """Keep texts of sessions that end, or forget them. Leader of a draft model only."""
        self._draft_texts().keep(is_on=is_on)

    @ray.method(concurrency_group="control")
    def take_texts(self) -> list[EndedText]:
        """Return the texts that have come since the last call.

        Some may be lost with an answer.
        """
        return self._draft_texts().take()

    @ray.method(concurrency_group="control")
    def pulse(self) -> LoopStats | None:
        """Answered while the process is alive; the leader's counters."""
        return None if self._loop is None else self._loop.stats()

    @ray.method(concurrency_group="control")
    def stop(self) -> None:
        """Make `run_loop` return, here and on the followers. Leader only."""
        self._started_loop().stop()

    def _draft_texts(self) -> EndedTexts:
        if self._ended_texts is None:
            raise RuntimeError("rank used before load(), or not the leader of a draft model")
        return self._ended_texts

    def _started_loop(self) -> EngineLoop:
        if self._loop is None:
            raise RuntimeError("rank used before load(), or not the leader")
        return self._loop


def join_ranks(model: ModelConfig, rank: int, world_size: int, meeting: str) -> TensorParallel:
    """Set up this process's place among the ranks of `model`; returns when all have come.

    Raises:
        RuntimeError: another rank did not come.
    """
    from models.parallel.ranks import RankWaits, TensorParallel

    if meeting.startswith("file:"):  # all on this node: gloo needs no other interface
        names = [name for _, name in socket.if_nameindex()]
        os.environ["GLOO_SOCKET_IFNAME"] = "lo" if "lo" in names else "lo0"
    return TensorParallel(
        rank,
        world_size,
        meeting,
        device=model.device,
        waits=RankWaits(
            load_s=LOAD_TIMEOUT_S,
            step_s=model.step_timeout_s,
            # The coordinator has ended a group by then if its leader makes no progress.
            idle_s=model.step_timeout_s + model.stall_timeout_s,
        ),
    )


def make_engine(kind: EngineKind, runner: ModelRunner, masks: LinkMaskSource, epoch: int) -> Engine:
    """Return the engine that answers for a draft or for a target."""
    if kind == "draft":
        from models.engine.draft import DraftEngine

        return DraftEngine(runner, masks, epoch)
    from models.engine.target import TargetEngine

    return TargetEngine(runner, masks, epoch)


def weights_name(model: ModelConfig, rank: int) -> str:
    """Return the name by which replicas of one config and checkpoint share a rank's weights."""
    path = Path(model.model_path)
    files = [(one.name, one.stat()) for one in (path, *sorted(path.glob("*"))) if one.exists()]
    known = [(name, stat.st_size, stat.st_mtime_ns) for name, stat in files]
    return hashlib.blake2b(
        f"{rank} {model.model_dump_json()} {known}".encode(), digest_size=16
    ).hexdigest()
