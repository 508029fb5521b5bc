"""The Serve deployment Constraint: leases and a link for the grammar processes.

Routers open and commit grammars here, engines ask for masks; both over the same link. A router's
key is let in by its lease, an engine's key by the router that introduces it (`GrammarOpen.peers`).
`workers` knows grammars and their limits. This file only passes messages between a socket and its
`submit`.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator
from dataclasses import asdict
from functools import partial
from pathlib import Path

import ray
from ray.serve.schema import ReplicaRank

from deployments.config.live_limits import refuse_any, take_user_config
from deployments.config.schema import GrammarServiceConfig
from deployments.config.sections.models import LinkConfig
from deployments.constraint.failures import failed
from deployments.constraint.meters import ConstraintMeters
from deployments.constraint.pipe import ConstraintConfig
from deployments.constraint.reward_workers import RewardWorkers
from deployments.constraint.workers import ConstraintWorkers, children_config
from deployments.link.leases import LeaseBook, LeaseKey
from deployments.link.server import LOOPBACK, AsyncLinkServer, Peer
from deployments.serve.heap import freeze_heap
from deployments.serve.instruments import Meters
from deployments.serve.logs import join_serve
from deployments.serve.meters import ray_mirror
from deployments.serve.page import Page, replica_name
from deployments.serve.spare import ready_now
from deployments.serve.watchdog import start_watchdog
from models.checkpoint.small_files import read_vocab_size
from models.fetch.hub import bring
from models.protocol.grammars import GrammarCheck
from models.protocol.messages import (
    ConstraintReply,
    ConstraintRequest,
    GrammarClose,
    GrammarOpen,
    LeaseGrant,
    LeaseRequest,
)
from models.protocol.rewards import RewardScore
from models.text.tokenizer import Tokenizer

logger = logging.getLogger("ray.serve")

_METER_PERIOD_S = 1.0


class ConstraintReplica:
    """One replica of Constraint.

    Args:
        service: children and their limits.
        link: how to listen.
        model_path: the target's checkpoint: its tokenizer, eos ids and vocabulary size.
        model_name: what clients ask for, a label of the metrics.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, service: GrammarServiceConfig, link: LinkConfig, model_path: str, model_name: str
    ) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self._has_spare = service.spare
        self._is_serving = False
        join_serve()
        start_watchdog()
        self._leases = LeaseBook(idle_timeout_s=service.lease_idle_timeout_s)
        self._holders: dict[LeaseKey, asyncio.Event] = {}  # each waits for its lease's end
        self._meters = ConstraintMeters(
            Meters({"model_name": model_name, "engine": "constraint"}, ray_mirror)
        )
        await asyncio.to_thread(bring, Path(model_path), logger.info, weights=False)
        config = workers_config(service, model_path)
        self._workers, self._rewards = ConstraintWorkers(config), RewardWorkers(config)
        if service.reward_classifiers:  # loading them takes seconds
            self._rewards.begin()
        logger.info("constraint: starting %d children", service.num_children)
        started_s = time.monotonic()
        await self._workers.start()
        host = ray.util.get_node_ip_address() if link.host == "node" else LOOPBACK
        self._server: AsyncLinkServer[ConstraintRequest] = AsyncLinkServer(
            ConstraintRequest, self._on_messages, host=host, high_water_mark=link.high_water_mark
        )
        self._server.on_renewed = self._leases.renew
        self._server.start()
        self._grant = LeaseGrant(endpoint=self._server.endpoint, replica=replica_name())
        self._sweeping = asyncio.create_task(self._sweep(), name="sweep-leases")
        self._metering = asyncio.create_task(self._meter(), name="meter")
        freeze_heap()
        logger.info(
            "constraint: ready in %.1f s: pid %d, %s",
            time.monotonic() - started_s,
            os.getpid(),
            self._server.endpoint.address,
        )

    async def lease(self, request: LeaseRequest) -> AsyncGenerator[LeaseGrant, None]:
        """Admit one session: yields where to send messages, then stays open with the lease."""
        self._server.allow(request.public_key)
        key = (request.session_id, self._leases.grant(request.session_id))
        ended = self._holders[key] = asyncio.Event()
        self._settle()
        try:
            yield self._grant
            await ended.wait()
        finally:
            del self._holders[key]
            self._leases.release(*key)
            self._settle()

    async def reconfigure(self, user_config: object, rank: ReplicaRank) -> None:
        """Called by Serve at the start and when a `user_config` comes up, which is refused here.

        Raises:
            ValueError: the application is just being deployed with one.
        """
        await take_user_config(refuse_any, user_config, "Constraint", is_serving=self._is_serving)
        self._is_serving = True

    async def record_replica_metadata(self) -> dict[str, float]:
        """Called by Serve when the replica is ready, for request routers."""
        return ready_now(self._has_spare)

    async def check_health(self) -> None:
        """Called by Serve. Dead children are replaced by the workers themselves.

        Raises:
            RuntimeError: messages are no longer taken from the link.
        """
        if not self._server.is_receiving:
            raise RuntimeError("constraint: the link takes no messages any more")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve where the deployment has an autoscaling_config; see `scaling`."""
        return {"queue_length": float(self._workers.stats.queue_length)}

    async def metrics_page(self) -> Page:
        """Return the replica's id and its instruments, for the page of a router."""
        return replica_name(), self._meters.text()

    async def stats(self) -> dict[str, float]:
        """Counters for tests and status pages."""
        counters: dict[str, float] = asdict(self._workers.stats)
        return counters | {
            "num_leases": len(self._leases),
            "rewards_refused": self._rewards.num_refused,
        }

    async def __del__(self) -> None:  # Serve awaits it
        """Called by Serve when the replica is stopped."""
        sweeping = getattr(self, "_sweeping", None)
        if sweeping is None:
            return
        sweeping.cancel()
        self._metering.cancel()
        await self._server.close()
        await self._workers.stop()
        await self._rewards.stop()

    def _on_messages(self, peer: Peer, messages: list[ConstraintRequest]) -> None:
        self._leases.touch(message.session_id for message in messages)
        for message in messages:
            if isinstance(message, GrammarOpen) and message.epoch != self._grant.endpoint.epoch:
                continue  # meant for an earlier process here: no close would ever fit it
            needs_lease = isinstance(message, GrammarOpen | GrammarCheck | RewardScore)
            if needs_lease and message.session_id not in self._leases:
                answer = failed(message, "the session holds no lease on this replica")
                assert answer is not None
                self._server.reply(peer, answer)
                continue
            if isinstance(message, RewardScore):
                self._rewards.submit(message, partial(self._server.reply, peer))
                continue
            if isinstance(message, GrammarOpen):
                for public_key in message.peers:
                    self._server.allow(public_key)
            self._workers.submit(message, partial(self._server.reply, peer))

    def _settle(self) -> None:
        """End what holders wait for, and forget the grammars of sessions without a lease."""
        ended = self._leases.ended()
        for key in ended:
            self._holders[key].set()
        self._leases.acknowledge(ended)
        for session_id in self._leases.take_freed():
            close = GrammarClose(session_id=session_id, epoch=self._grant.endpoint.epoch)
            self._workers.submit(close, _ignore)

    async def _meter(self) -> None:
        while True:
            self._meters.update(self._workers.stats, len(self._leases))
            await asyncio.sleep(_METER_PERIOD_S)

    async def _sweep(self) -> None:
        while True:
            await asyncio.sleep(self._leases.sweep_period_s)
            self._leases.end_idle()
            self._settle()


def workers_config(service: GrammarServiceConfig, model_path: str) -> ConstraintConfig:
    """Return the children's config, from the service's tree and the target's checkpoint."""
    return children_config(
        service,
        tokenizer_path=model_path,
        vocab_size=read_vocab_size(Path(model_path)),
        eos_ids=Tokenizer.load(model_path).eos_ids,
    )


def _ignore(reply: ConstraintReply) -> None:
    """Drop a reply that nobody waits for."""
