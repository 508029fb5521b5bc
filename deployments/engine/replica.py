"""The Serve deployments Draft and Target: a coordinator that owns one model's rank processes.

The coordinator holds no model and no GPU. It starts the ranks in its replica's placement group,
watches them (`rank_group`), answers health checks, and hands out leases. When a rank is lost the
coordinator ends the others and then its own process: every lease then fails at once, routers'
handles stop choosing the replica at once, and Serve starts a new one. Refusing leases and failing
health checks instead would leave an idle-looking replica that attracts all new leases until the
next check. Messages of sessions never pass through here.

Serve cancels the task of a lease when its router lets go, and Ray then cancels every call that the
task has made, on the way or not. So a lease makes no call itself: calls to ranks come from tasks
that run in the context of `__init__`, and what must not be lost (leases that ended, on either
side) is reported again until it is acknowledged.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
from collections.abc import AsyncGenerator, Coroutine
from pathlib import Path
from typing import Any, TypeVar

from ray import serve
from ray.exceptions import RayError
from ray.serve.schema import ReplicaRank

from deployments.config.live_limits import refuse_any, take_user_config
from deployments.config.schema import LinkConfig, ModelConfig
from deployments.engine.loop import LoopStats
from deployments.engine.meters import EngineMeters, EngineReport
from deployments.engine.rank import FETCH_TIMEOUT_S, EngineKind, RankReport
from deployments.engine.rank_group import RankGroup
from deployments.link.leases import LeaseKey
from deployments.serve.instruments import Meters
from deployments.serve.logs import is_json, join_serve
from deployments.serve.meters import ray_mirror
from deployments.serve.page import Page
from models.fetch.hub import bring
from models.gguf.folder import source_of
from models.protocol.messages import LeaseGrant, LeaseRequest

logger = logging.getLogger("ray.serve")

_CONTROL_TIMEOUT_S = 5.0  # for a control call, which waits for nothing but the GIL
_SETTLE_PERIOD_S = 1.0  # leases that ended at the leader are asked for this often

Result = TypeVar("Result")


class EngineReplica:
    """One replica of Draft or Target.

    Args:
        kind: which of the two.
        model: what to load.
        link: how the leader listens.
        model_name: what clients ask for, a label of the metrics.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, kind: EngineKind, model: ModelConfig, link: LinkConfig, model_name: str
    ) -> None:
        # An accident here must not take a GPU that is meant for a rank.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        join_serve()
        self._kind = kind
        self._own_context = contextvars.copy_context()
        self._leases: dict[LeaseKey, asyncio.Event] = {}
        self._released: set[LeaseKey] = set()  # to be reported to the leader
        self._has_released = asyncio.Event()
        self._is_stopping = False
        self._meters = EngineMeters(Meters({"model_name": model_name, "engine": kind}, ray_mirror))
        self._report = EngineReport()
        async with asyncio.timeout(FETCH_TIMEOUT_S):  # ranks on other nodes fetch for themselves
            await asyncio.to_thread(bring, Path(model.model_path), logger.info)
        self._ranks = RankGroup(kind, model, link, self._note_stats, logs_json=is_json())
        self._is_serving = False
        logger.info(
            "%s: loading %s (%s, %s)%s",
            kind,
            model.model_path,
            model.dtype,
            model.device,
            f" dequantised {source}" if (source := source_of(Path(model.model_path))) else "",
        )
        try:
            reports = await self._ranks.start()
        except BaseException:
            self._ranks.kill()
            raise
        grant = reports[0].grant
        assert grant is not None, "the leader grants leases"
        self._grant = grant
        self._tasks = [
            asyncio.create_task(self._watch_ranks(), name="watch-ranks"),
            asyncio.create_task(self._settle_leases(), name="settle-leases"),
        ]
        _log_ready(kind, reports, grant)
        self._meters.describe(
            batch_invariant=grant.batch_invariant,
            num_graphs=min(report.num_graphs for report in reports),
            graph_bytes=max(report.graph_bytes for report in reports),
        )

    async def lease(self, request: LeaseRequest) -> AsyncGenerator[LeaseGrant, None]:
        """Admit one session: yields where to reach the leader, then stays open with the lease.

        Ends when the session idles out at the leader; the caller ends it by cancelling.
        """
        admission = self._in_own_context(self._admit(request))
        try:
            async with asyncio.timeout(_CONTROL_TIMEOUT_S):
                key = await asyncio.shield(admission)
            yield self._grant
            await self._leases[key].wait()
        finally:
            # Also when the lease was cancelled before the leader had answered.
            admission.add_done_callback(self._release)

    async def reconfigure(self, user_config: object, rank: ReplicaRank) -> None:
        """Called by Serve at the start and when a `user_config` comes up, which is refused here.

        Raises:
            ValueError: the application is just being deployed with one.
        """
        await take_user_config(
            refuse_any, user_config, self._kind.capitalize(), is_serving=self._is_serving
        )
        self._is_serving = True

    async def check_health(self) -> None:
        """Called by Serve, which replaces the replica after three failures in a row.

        Ranks are watched all the time, so nothing is asked of them here.

        Raises:
            RuntimeError: a task that this replica cannot do without has ended.
        """
        for task in self._tasks:
            if task.done():
                raise RuntimeError(f"{self._kind}: task {task.get_name()} has ended")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve where the deployment has an autoscaling_config; see `scaling`."""
        return self._report.take()

    async def metrics_page(self) -> Page:
        """The replica's id and its instruments, for the page of a router."""
        return serve.get_replica_context().replica_id.unique_id, self._meters.text()

    async def stats(self) -> dict[str, float]:
        """Counters for tests and status pages."""
        async with asyncio.timeout(_CONTROL_TIMEOUT_S):
            stats = await self._in_own_context(self._leader_stats())
        return {
            "num_sessions": stats.num_sessions,
            "num_steps": stats.num_steps,
            "num_leases": len(self._leases),
            "num_used_blocks": stats.num_used_blocks,
            "num_waiting_tokens": stats.load.num_waiting_tokens,
            "rank_pid": self._ranks.pids[0],
        }

    async def rank_pids(self) -> list[int]:
        """Processes of the ranks, the leader's first."""
        return self._ranks.pids

    def __del__(self) -> None:
        """Called by Serve when the replica is stopped; the ranks go with it."""
        self._is_stopping = True
        ranks = getattr(self, "_ranks", None)
        if ranks is not None:
            ranks.kill()

    def _in_own_context(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Run `work` so that Ray does not take its calls for those of the current request."""
        return asyncio.get_running_loop().create_task(work, context=self._own_context)

    async def _admit(self, request: LeaseRequest) -> LeaseKey:
        lease_id: int = await self._ranks.leader.admit.remote(
            request.session_id, request.public_key
        )
        key = (request.session_id, lease_id)
        self._leases[key] = asyncio.Event()
        return key

    async def _leader_stats(self) -> LoopStats:
        stats: LoopStats = await self._ranks.leader.stats.remote()
        return stats

    def _note_stats(self, stats: LoopStats) -> None:
        self._report.note(stats)
        self._meters.update(stats.load, len(self._leases))

    def _release(self, admission: asyncio.Task[LeaseKey]) -> None:
        if admission.cancelled() or admission.exception() is not None:
            return  # the leader is gone, and its sessions with it
        key = admission.result()
        self._leases.pop(key, None)
        self._released.add(key)
        self._has_released.set()

    async def _watch_ranks(self) -> None:
        reason = await self._ranks.watch()
        if not self._is_stopping:
            logger.error("%s: the model is lost, replica ends: %s", self._kind, reason)
            self._ranks.kill()
            logging.shutdown()
            os._exit(1)

    async def _settle_leases(self) -> None:
        """Report to the leader which leases ended here; end those that it ended itself."""
        acknowledged: list[LeaseKey] = []
        while True:
            await self._wait_for_releases()
            released = list(self._released)
            try:
                async with asyncio.timeout(_CONTROL_TIMEOUT_S):
                    ended = await self._ranks.leader.settle.remote(released, acknowledged)
            except (RayError, TimeoutError):
                # Reported again in the next turn; `_watch_ranks` decides if the leader is lost.
                await asyncio.sleep(_SETTLE_PERIOD_S)
                continue
            self._released.difference_update(released)
            acknowledged = ended
            for key in ended:
                if key in self._leases:
                    self._leases[key].set()

    async def _wait_for_releases(self) -> None:
        self._has_released.clear()
        if self._released:
            return
        try:
            async with asyncio.timeout(_SETTLE_PERIOD_S):
                await self._has_released.wait()
        except TimeoutError:
            return


def _log_ready(kind: EngineKind, reports: list[RankReport], grant: LeaseGrant) -> None:
    logger.info(
        "%s: ready in %.1f s: pid %s, %s, weights %s MB, KV for %d tokens of %s bytes each: "
        "%d sessions of max_model_len %d, attention: %s, batch_invariant %s",
        kind,
        max(report.load_s for report in reports),
        " ".join(str(report.pid) for report in reports),
        grant.endpoint.address,
        " ".join(f"{report.weight_bytes / 1e6:.1f}" for report in reports),
        reports[0].kv_cache_tokens,
        " ".join(str(report.kv_bytes_per_token) for report in reports),
        reports[0].kv_cache_tokens // grant.max_model_len,
        grant.max_model_len,
        reports[0].attention,
        grant.batch_invariant,
    )
