"""The Serve deployments Draft and Target: a coordinator that owns a model's rank processes.

The coordinator holds no model and no GPU. It starts the ranks in its replica's placement group,
watches them (`rank_group`), answers health checks, and hands out leases. If a rank is lost, the
coordinator ends the other ranks, its leases with the reason, and its own process. Routers' handles
then stop choosing the replica at once, and Serve starts a new one. Refused leases and failed
health checks would leave an idle-looking replica instead. It would attract all new leases until the
next check. Messages of sessions never pass through here.

A target may have a spare, a second replica (`serve/spare.py`).

A draft model may be swapped while it serves (`swap`). The other one's ranks run beside the first's
until it takes over or is dropped. A lease stays with the model that it was given by.

Serve cancels the task of a lease when its router lets go. Ray then cancels every call that the task
has made, on the way or not. So a lease makes no call itself: calls to ranks come from tasks that
run in the context of `__init__`.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
import os
from collections.abc import AsyncGenerator, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace
from ray.exceptions import RayError
from ray.serve.schema import ReplicaRank

from deployments.config.live_draft import WantedDraft, wanted_draft
from deployments.config.live_limits import refuse_any, take_user_config
from deployments.config.sections.models import LinkConfig, ModelConfig
from deployments.engine.loaded_model import CONTROL_TIMEOUT_S, AdmissionRefused, LoadedModel
from deployments.engine.loop import LoopStats
from deployments.engine.meters import EngineMeters, EngineReport, EngineStart
from deployments.engine.rank import FETCH_TIMEOUT_S, EngineKind, RankReport
from deployments.engine.swap import DraftSwap
from deployments.engine.swap_meters import SwapMeters
from deployments.link.leases import LeaseKey
from deployments.serve.errors import first_line
from deployments.serve.heap import freeze_heap
from deployments.serve.instruments import Meters
from deployments.serve.logs import join_serve
from deployments.serve.meters import ray_mirror
from deployments.serve.page import Page, replica_name
from deployments.serve.spare import ready_now
from deployments.serve.watchdog import start_watchdog
from models.checkpoint.packed_shapes import as_packed
from models.fetch.hub import bring
from models.gguf.folder import source_of
from models.protocol.errors import Unavailable
from models.protocol.messages import LeaseGrant, LeaseRefused, LeaseRequest
from models.text.vocabulary import read_vocabulary

logger = logging.getLogger("ray.serve")

Result = TypeVar("Result")

_LOADING_ERRORS = (RayError, TimeoutError, Unavailable, ValueError)
_LAST_WORDS_S = 0.1  # in which the leases of a lost model end with the reason


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
        start_watchdog()
        self._kind = kind
        self._model = model
        self._link = link
        self._own_context = contextvars.copy_context()
        self._is_stopping = False
        meters = Meters({"model_name": model_name, "engine": kind}, ray_mirror)
        self._meters = EngineMeters(meters)
        self._swap_meters = SwapMeters(meters) if kind == "draft" else None
        self._report = EngineReport()
        async with asyncio.timeout(FETCH_TIMEOUT_S):  # ranks on other nodes fetch for themselves
            await asyncio.to_thread(bring, Path(model.model_path), logger.info)
        self._vocabulary = await asyncio.to_thread(_vocabulary_in, Path(model.model_path))
        self._is_serving = False
        self._loading: LoadedModel | None = None
        first = await self._load(model)
        self._models = DraftSwap(first, self._load_wanted, _LOADING_ERRORS, self._begin_anew)
        self._describe()
        freeze_heap()

    async def lease(self, request: LeaseRequest) -> AsyncGenerator[LeaseGrant | LeaseRefused, None]:
        """Admit one session: yields where to reach the leader, then stays open with the lease.
        It ends at once with a refusal where the leader's pass may hang.

        Ends when the session idles out at the leader, and with a refusal when the model is lost.
        The caller ends it by cancelling.
        """
        model = self._models.serving
        admission = self._in_own_context(model.admit(request))
        try:
            try:
                async with asyncio.timeout(CONTROL_TIMEOUT_S):
                    key = await asyncio.shield(admission)
            except AdmissionRefused as refusal:
                yield LeaseRefused(replica=replica_name(), reason=str(refusal))
                return
            yield replace(model.grant, replica=replica_name(), vocabulary=self._vocabulary)
            await model.ended(key)
            if model.lost:  # told at once: Ray finds half a second later that a process is gone
                yield LeaseRefused(replica=replica_name(), reason=model.lost)
        finally:
            # Also when the lease was cancelled before the leader had answered.
            admission.add_done_callback(partial(_release, model))

    async def reconfigure(self, user_config: object, rank: ReplicaRank) -> None:
        """Called by Serve at the start and when a `user_config` comes up: another draft model.

        A target takes none.

        Raises:
            ValueError: the application is just being deployed with one that is refused.
        """
        take = self._want_draft if self._kind == "draft" else refuse_any
        is_taken = await take_user_config(
            take, user_config, self._kind.capitalize(), is_serving=self._is_serving
        )
        self._is_serving = True
        if self._swap_meters is not None:
            self._swap_meters.is_refused = not is_taken

    async def _want_draft(self, user_config: object) -> None:
        """Have another draft model take over, in the background: Serve waits for this call."""
        wanted = await asyncio.to_thread(wanted_draft, self._model, user_config)
        self._own_context.run(self._models.want, wanted)

    async def record_replica_metadata(self) -> dict[str, float]:
        """Called by Serve when the replica is ready, for request routers."""
        return ready_now(self._model.spare)

    async def check_health(self) -> None:
        """Called by Serve, which replaces the replica after three failures in a row.

        Ranks are watched all the time, so nothing is asked of them here.

        Raises:
            RuntimeError: a task that this replica cannot do without has ended.
        """
        for task in self._models.serving.tasks:
            if task.done():
                raise RuntimeError(f"{self._kind}: task {task.get_name()} has ended")

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Called by Serve where the deployment has an autoscaling_config; see `scaling`."""
        return self._report.take()

    async def metrics_page(self) -> Page:
        """Return the replica's id and its instruments, for the page of a router."""
        return replica_name(), self._meters.text()

    async def stats(self) -> dict[str, float]:
        """Counters for tests and status pages."""
        async with asyncio.timeout(CONTROL_TIMEOUT_S):
            stats = await self._in_own_context(self._models.serving.stats())
        counters: dict[str, float] = {
            "num_sessions": stats.num_sessions,
            "num_steps": stats.num_steps,
            "num_leases": self._num_leases(),
            "num_used_blocks": stats.num_used_blocks,
            "num_waiting_tokens": stats.load.num_waiting_tokens,
            "pid": os.getpid(),
            "rank_pid": self._models.serving.ranks.pids[0],
        }
        return counters

    async def rank_pids(self) -> list[int]:
        """Processes of the ranks, the leader's first."""
        return self._models.serving.ranks.pids

    def __del__(self) -> None:
        """Called by Serve when the replica is stopped; the ranks go with it."""
        self._is_stopping = True
        for model in self._all_models():
            model.ranks.kill()

    def _in_own_context(self, work: Coroutine[Any, Any, Result]) -> asyncio.Task[Result]:
        """Run `work` so that Ray does not take its calls for those of the current request."""
        return asyncio.get_running_loop().create_task(work, context=self._own_context)

    def _all_models(self) -> list[LoadedModel]:
        """Return all that have processes, at any time of this object's life."""
        models: DraftSwap[LoadedModel] | None = getattr(self, "_models", None)
        loading: LoadedModel | None = getattr(self, "_loading", None)
        found = (loading, *([] if models is None else models.models))
        return [model for model in found if model is not None]

    async def _load_wanted(self, wanted: WantedDraft) -> LoadedModel:
        try:
            return await self._load(wanted.model, self._models.serving)
        except RayError as error:
            raise ValueError(first_line(error)) from error

    async def _load(self, config: ModelConfig, beside: LoadedModel | None = None) -> LoadedModel:
        model = LoadedModel(
            self._kind, config, self._link, self._note_stats, self._note_loss, beside
        )
        logger.info(
            "%s: loading %s (%s, %s)%s",
            self._kind,
            config.model_path,
            config.dtype,
            config.device,
            f", {source}" if (source := source_of(as_packed(config).model_path)) else "",
        )
        self._loading = model  # `__del__` ends it
        try:
            await model.start()
        except BaseException:
            model.end()
            raise
        finally:
            self._loading = None
        _log_ready(self._kind, model.reports, model.grant)
        return model

    def _begin_anew(self) -> None:
        """Count another model from 0."""
        self._meters.begin_anew()
        self._report = EngineReport()
        self._describe()

    def _describe(self) -> None:
        """Tell of the model that serves."""
        serving = self._models.serving
        start = EngineStart(
            batch_invariant=serving.grant.batch_invariant,
            num_graphs=min(report.num_graphs for report in serving.reports),
            graph_bytes=max(report.graph_bytes for report in serving.reports),
        )
        self._meters.describe(start)

    def _num_leases(self) -> int:
        return sum(model.num_leases for model in self._models.models)

    def _note_stats(self, model: LoadedModel, stats: LoopStats) -> None:
        if model is not self._models.serving:
            return
        self._report.note(stats)
        self._meters.update(stats.load, self._num_leases())
        if self._swap_meters is not None:
            self._swap_meters.publish(self._models.state)

    def _note_loss(self, model: LoadedModel) -> None:
        """Note the loss of a model: if it serves, the replica ends with it."""
        if self._is_stopping:
            return
        if model is not self._models.serving:
            logger.error("%s: %s is lost: %s", self._kind, model.path, model.lost)
            return
        logger.error("%s: the model is lost, replica ends: %s", self._kind, model.lost)
        self._is_stopping = True
        for one in self._all_models():
            one.ranks.kill()
        asyncio.get_running_loop().call_later(_LAST_WORDS_S, _leave)


def _leave() -> None:
    logging.shutdown()
    os._exit(1)


def _vocabulary_in(checkpoint: Path) -> str:
    """Return the digest of a checkpoint's token ids; "": it has no tokenizer of its own.

    Routers with a `tokenizer_path` elsewhere ask for none; all others refuse the replica.
    """
    path = checkpoint / "tokenizer.json"
    return read_vocabulary(path).digest if path.exists() else ""


def _release(model: LoadedModel, admission: asyncio.Task[LeaseKey]) -> None:
    if not admission.cancelled() and admission.exception() is None:  # else the leader is gone
        model.release(admission.result())


def _log_ready(kind: EngineKind, reports: list[RankReport], grant: LeaseGrant) -> None:
    logger.info(
        "%s: ready in %.1f s: pid %s, %s, weights %s MB (%.1f bits each), KV for %d tokens of %s "
        "bytes each: %d sessions of max_model_len %d, attention: %s, batch_invariant %s",
        kind,
        max(report.load_s for report in reports),
        " ".join(str(report.pid) for report in reports),
        grant.endpoint.address,
        " ".join(f"{report.weight_bytes / 1e6:.1f}" for report in reports),
        reports[0].bits_a_weight,
        reports[0].kv_cache_tokens,
        " ".join(str(report.kv_bytes_per_token) for report in reports),
        reports[0].kv_cache_tokens // grant.max_model_len,
        grant.max_model_len,
        reports[0].attention,
        grant.batch_invariant,
    )
