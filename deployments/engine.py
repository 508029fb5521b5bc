"""The Serve deployments Draft and Target: a coordinator that owns one model's rank processes.

The coordinator holds no model and no GPU. It starts the ranks in its replica's placement group,
keeps a call outstanding on each (so that a death is noticed at once), answers health checks, and
hands out leases. When a rank dies the coordinator's process ends too: every lease then fails at
once, routers' handles stop choosing the replica at once, and Serve starts a new one. Refusing
leases and failing health checks instead would leave an idle-looking replica that attracts all new
leases until the next check. Messages of sessions never pass through here.
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import AsyncGenerator
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from deployments.config import LinkConfig, ModelConfig
from deployments.leader import EngineKind, Rank, RankReport
from models.messages import LeaseGrant, LeaseRequest

logger = logging.getLogger("ray.serve")

_CONTROL_TIMEOUT_S = 5.0  # for a control call, which waits for nothing but the GIL
_SWEEP_PERIOD_S = 1.0
_STALL_S = 60.0  # an engine thread that has not turned for so long is dead, whatever Ray says
_CONTROL_THREADS = 4


class EngineReplica:
    """One replica of Draft or Target.

    Args:
        kind: which of the two.
        model: what to load.
        link: how the leader listens.
    """

    async def __init__(  # type: ignore[misc]  # Serve awaits it
        self, kind: EngineKind, model: ModelConfig, link: LinkConfig
    ) -> None:
        # An accident here must not take a GPU that is meant for a rank.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
        self._kind = kind
        self._model = model
        self._leases: dict[tuple[str, int], asyncio.Event] = {}
        self._is_stopping = False
        self._progress = (-1, time.monotonic())  # ticks of the leader's loop, and since when
        self._rank: Any = _start_rank(kind, model, link)
        logger.info("%s: loading %s (%s, %s)", kind, model.model_path, model.dtype, model.device)
        report: RankReport = await self._rank.load.remote()
        self._grant = report.grant
        self._rank_pid = report.pid
        self._loop_ref = self._rank.run_loop.remote()
        self._tasks = [
            asyncio.create_task(self._watch_rank(), name="watch-rank"),
            asyncio.create_task(self._sweep(), name="sweep-leases"),
        ]
        _log_ready(kind, report)

    async def lease(self, request: LeaseRequest) -> AsyncGenerator[LeaseGrant, None]:
        """Admit one session: yields where to reach the leader, then stays open with the lease.

        Ends when the session idles out at the leader; the caller ends it by cancelling.
        """
        async with asyncio.timeout(_CONTROL_TIMEOUT_S):
            lease_id: int = await self._rank.admit.remote(request.session_id, request.public_key)
        key = (request.session_id, lease_id)
        ended = self._leases[key] = asyncio.Event()
        try:
            yield self._grant
            await ended.wait()
        finally:
            self._leases.pop(key, None)
            # Not awaited: this runs when the lease is cancelled, too.
            self._rank.release.remote(*key)

    async def check_health(self) -> None:
        """Called by Serve, which replaces the replica after three failures in a row.

        Raises:
            TimeoutError: the rank's process does not answer.
            RuntimeError: its engine thread has stopped turning.
        """
        async with asyncio.timeout(_CONTROL_TIMEOUT_S):
            stats = await self._rank.stats.remote()
        now_s = time.monotonic()
        num_ticks, since_s = self._progress
        if stats.num_ticks != num_ticks:
            self._progress = (stats.num_ticks, now_s)
        elif now_s - since_s > _STALL_S:
            raise RuntimeError(f"{self._kind}: no turn of the engine loop for {_STALL_S:g} s")

    async def stats(self) -> dict[str, float]:
        """Counters for tests and status pages."""
        stats = await self._rank.stats.remote()
        return {
            "num_sessions": stats.num_sessions,
            "num_steps": stats.num_steps,
            "num_leases": len(self._leases),
            "rank_pid": self._rank_pid,
        }

    def __del__(self) -> None:
        """Called by Serve when the replica is stopped; the rank goes with it."""
        self._is_stopping = True
        rank = getattr(self, "_rank", None)
        if rank is not None:
            ray.kill(rank)

    async def _watch_rank(self) -> None:
        reason = "its loop ended"
        try:
            await self._loop_ref
        except RayError as error:
            reason = str(error)
        if not self._is_stopping:
            logger.error("%s: the model's process is gone, replica ends: %s", self._kind, reason)
            logging.shutdown()
            os._exit(1)

    async def _sweep(self) -> None:
        """End the leases of sessions that the leader closed because they were idle."""
        while True:
            await asyncio.sleep(_SWEEP_PERIOD_S)
            try:
                async with asyncio.timeout(_CONTROL_TIMEOUT_S):
                    keys = await self._rank.take_ended.remote()
            except (RayError, TimeoutError):
                continue  # the watch and the health check deal with a dead or stuck rank
            for session_id, lease_id in keys:
                ended = self._leases.get((session_id, lease_id))
                if ended is not None:
                    ended.set()


def _start_rank(kind: EngineKind, model: ModelConfig, link: LinkConfig) -> Any:
    """Rank 0 in bundle 0 of the replica's placement group, with that bundle's GPUs."""
    group = get_current_placement_group()
    num_gpus = 0.0
    strategy: Any = "DEFAULT"
    if group is not None:
        num_gpus = group.bundle_specs[0].get("GPU", 0.0)
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=0)
    as_actor: Any = ray.remote(concurrency_groups={"control": _CONTROL_THREADS})  # type: ignore[call-overload]  # missing in Ray's stubs
    return (
        as_actor(Rank)
        .options(
            num_cpus=0,  # the bundle reserves them
            num_gpus=num_gpus,
            max_restarts=0,  # a restarted rank would have neither weights nor sessions
            max_task_retries=0,
            scheduling_strategy=strategy,
            runtime_env={
                "env_vars": {
                    "OMP_NUM_THREADS": str(model.num_threads),
                    "OMP_WAIT_POLICY": "passive",
                }
            },
        )
        .remote(kind, model, link, 0, model.tensor_parallel_size)
    )


def _log_ready(kind: EngineKind, report: RankReport) -> None:
    grant = report.grant
    logger.info(
        "%s: ready in %.1f s: pid %d, %s, KV for %d tokens, max_model_len %d, batch_invariant %s",
        kind,
        report.load_s,
        report.pid,
        grant.endpoint.address,
        report.kv_cache_tokens,
        grant.max_model_len,
        grant.batch_invariant,
    )
