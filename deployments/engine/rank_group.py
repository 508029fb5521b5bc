"""The rank processes of one model replica: started together, watched one by one, ended together.

Ranks share one model, so the loss of any is the loss of all. A rank counts as lost when its process
dies: its outstanding `run_loop` fails at once. It is lost when it is silent for `stall_timeout_s`
(swapped out, stuck in the kernel). Its watchdog kills one that is stopped. It is also lost when the
leader's loop makes no turn for as long. A pass that takes longer than `step_timeout_s` is a
loss too. So is one of a quarter of that where no pass of its size took nearly as long
(`step_times`). While ranks load, only death and a far longer limit count. The caller decides how to
react to a loss.

Calls made here must not come from the task of a lease: Ray cancels what a cancelled task has
called. `deployments.engine.replica` takes care of that.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import signal
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorDiedError, RayError
from ray.util.placement_group import get_current_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from deployments.config.sections.models import LinkConfig, ModelConfig
from deployments.engine.loop import LoopStats
from deployments.engine.rank import (
    FETCH_TIMEOUT_S,
    LOAD_TIMEOUT_S,
    EngineKind,
    Rank,
    RankPlace,
    RankReport,
)
from deployments.serve.errors import first_line
from models.fetch.hub import snapshot_of

_CONTROL_THREADS = 4
_LONGEST_PULSE_PERIOD_S = 1.0
# A step that takes far longer than its like may still compile a kernel. So a hang counts as a loss
# only after this share of step_timeout_s. New leases go elsewhere long before.
_HANG_SHARE = 0.25
_KERNELS_KEPT = 128  # the products of some 20 row counts


class RankGroup:
    """The ranks of one replica.

    Args:
        kind: which engine the leader runs.
        model: what they load; `tensor_parallel_size` is their number.
        link: how the leader listens.
        on_stats: called with the leader's counters, about once a second while it is watched.
        logs_json: whether ranks write their log lines as JSON.
        beside: ranks of another model of the replica, whose bundles and GPUs these share.
    """

    def __init__(
        self,
        kind: EngineKind,
        model: ModelConfig,
        link: LinkConfig,
        on_stats: Callable[[LoopStats], None] = lambda stats: None,
        *,
        logs_json: bool = False,
        beside: RankGroup | None = None,
    ) -> None:
        self._model = model
        self._on_stats = on_stats
        self._beside = beside
        self._ranks = [
            _start_rank(kind, model, link, rank, logs_json, shares_gpus=beside is not None)
            for rank in range(model.tensor_parallel_size)
        ]
        self._places: list[RankPlace] = []
        self._dead: set[int] = set()  # numbers of ranks whose process is known to be gone
        self._loop_refs: list[Any] = []
        self._meeting = ""

    @property
    def leader(self) -> Any:
        """The actor handle of rank 0."""
        return self._ranks[0]

    @property
    def places(self) -> list[RankPlace]:
        """The places of the ranks, in order; empty before `start`."""
        return self._places

    @property
    def pids(self) -> list[int]:
        """Their processes."""
        return [place.pid for place in self._places]

    async def start(self) -> list[RankReport]:
        """Load the model everywhere, at once, and let the ranks run.

        Raises:
            RayError: a rank died or could not load; kill the others.
            TimeoutError: they were not ready within the limit.
        """
        if snapshot_of(Path(self._model.model_path)) is not None:
            async with asyncio.timeout(FETCH_TIMEOUT_S):
                await _all(rank.fetch.remote() for rank in self._ranks)
        async with asyncio.timeout(LOAD_TIMEOUT_S):
            if self._beside is not None:
                pairs = zip(self._ranks, self._beside.places, strict=True)
                await _all(rank.go_beside.remote(place.gpus) for rank, place in pairs)
                self._beside = None  # it may end long before these
            self._places = await _all(rank.place.remote() for rank in self._ranks)
            if len(self._ranks) > 1:
                on_one_node = len({place.node_id for place in self._places}) == 1
                self._meeting = await self.leader.meet.remote(on_one_node)
            loading = [asyncio.ensure_future(self._load(rank)) for rank in self._ranks]
            try:
                started = await asyncio.gather(*loading)
            finally:
                for task in loading:
                    task.cancel()
        self._loop_refs = [loop_ref for _, loop_ref in started]
        return [report for report, _ in started]

    async def _load(self, rank: Any) -> tuple[RankReport, Any]:
        # A follower must run before the leader's load can end, so no rank waits for another here.
        report = await rank.load.remote(self._meeting)
        return report, rank.run_loop.remote()

    async def watch(self) -> str:
        """Return why the group is lost, as soon as it is. Call after `start`."""
        watches = []
        for number, (rank, loop_ref) in enumerate(zip(self._ranks, self._loop_refs, strict=True)):
            watches.append(asyncio.ensure_future(self._end_of(number, loop_ref)))
            watches.append(asyncio.ensure_future(self._stall_of(number, rank)))
        try:
            done, _ = await asyncio.wait(watches, return_when=asyncio.FIRST_COMPLETED)
            return "; ".join(sorted(task.result() for task in done))
        finally:
            for task in watches:
                task.cancel()

    async def _end_of(self, number: int, loop_ref: Any) -> str:
        """Why a rank's loop ended, when it does."""
        try:
            await loop_ref
        except RayError as error:
            return self._lost(number, error)
        return f"rank {number}: its loop ended"

    async def _stall_of(self, number: int, rank: Any) -> str:
        """Watch one rank; returns only when it makes no progress or is gone, and then why."""
        limit_s = self._model.stall_timeout_s
        period_s = min(_LONGEST_PULSE_PERIOD_S, limit_s / 4)
        loop = asyncio.get_running_loop()
        num_ticks, since_s = -1, loop.time()
        while True:
            answer = asyncio.ensure_future(rank.pulse.remote())
            answer.add_done_callback(_note_outcome)
            # Not a timeout: an answer that came while this process itself was held up counts.
            done, _ = await asyncio.wait([answer], timeout=limit_s)
            if not done:
                answer.cancel()
                return f"rank {number}: silent for {limit_s:g} s (stall_timeout_s)"
            try:
                stats: LoopStats | None = answer.result()
            except RayError as error:
                return self._lost(number, error)
            if stats is not None:
                self._on_stats(stats)
                if stats.num_ticks != num_ticks:
                    num_ticks, since_s = stats.num_ticks, loop.time()
                still_s = loop.time() - since_s
                if complaint := stall_complaint(self._model, stats, still_s):
                    return f"rank {number}: {complaint}"
            await asyncio.sleep(period_s)

    def _lost(self, number: int, error: RayError) -> str:
        if isinstance(error, ActorDiedError):
            self._dead.add(number)
        return f"rank {number}: {first_line(error)}"

    def kill(self) -> None:
        """End all ranks, stopped ones too. Idempotent; does not wait for them to be gone.

        Ranks that `watch` found dead get no signal: their ids may be other processes' by now.
        """
        for rank in self._ranks:
            ray.kill(rank)
        living = [p for number, p in enumerate(self._places) if number not in self._dead]
        end_processes(living, ray.get_runtime_context().get_node_id())
        self._places = []
        if self._meeting.startswith("file://"):
            folder = Path(self._meeting.removeprefix("file://")).parent
            shutil.rmtree(folder, ignore_errors=True)


def stall_complaint(model: ModelConfig, stats: LoopStats, still_s: float) -> str:
    """Return the fault of a leader whose loop has not turned for `still_s` seconds, or ""."""
    if stats.is_stepping:
        if stats.step_age_s > model.step_timeout_s:
            return f"one pass takes {stats.step_age_s:.1f} s, more than step_timeout_s"
        least_s = max(model.stall_timeout_s, _HANG_SHARE * model.step_timeout_s)
        if stats.step_age_s <= max(least_s, stats.most_step_s):
            return ""
        return f"one pass takes {stats.step_age_s:.1f} s, far longer than others of its size"
    if still_s <= model.stall_timeout_s:
        return ""
    return f"no turn of the engine loop for {still_s:.1f} s (stall_timeout_s)"


def end_processes(places: Iterable[RankPlace], node_id: str) -> None:
    """Kill the processes that run on this node, now.

    Ray asks first and kills later; a stopped process would stay until then.
    """
    for place in places:
        if place.node_id == node_id:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(place.pid, signal.SIGKILL)


def rank_environment(model: ModelConfig) -> dict[str, str]:
    """Environment variables of a rank's process, read by libraries when they are loaded."""
    # Threads of a pass wait for each other some hundred times; how is left to OpenMP, which spins a
    # moment before it sleeps. Passive waiting made a pass of two threads 1.5 times longer.
    environment = {"OMP_NUM_THREADS": str(model.num_threads)}
    if model.device == "cpu":
        environment["CUDA_VISIBLE_DEVICES"] = ""  # transformers takes any GPU it sees
        # oneDNN keeps machine code, about 0.6 MiB, for every shape of a product, and passes come
        # with hundreds of row counts. There are two caches, each of 1024 entries by default,
        # and both hold on to what the other lets go. To compile one again takes a fraction of a
        # millisecond.
        for cache in ("ONEDNN_PRIMITIVE_CACHE_CAPACITY", "LRU_CACHE_CAPACITY"):
            environment[cache] = str(_KERNELS_KEPT)
    return environment


def _note_outcome(answer: asyncio.Future[Any]) -> None:
    """Retrieve the outcome, or asyncio complains when the group is killed that it never was."""
    if not answer.cancelled():
        answer.exception()


async def _all(refs: Any) -> list[Any]:
    return list(await asyncio.gather(*refs))


def _start_rank(
    kind: EngineKind,
    model: ModelConfig,
    link: LinkConfig,
    rank: int,
    logs_json: bool,
    *,
    shares_gpus: bool,
) -> Any:
    """Rank `rank` in that bundle of the replica's placement group, with that bundle's GPUs.

    `build` refuses fewer bundles than ranks.
    `shares_gpus`: another rank has taken those, as Ray counts; this one is told which they are.
    """
    group = get_current_placement_group()
    num_gpus = 0.0
    strategy: Any = "DEFAULT"
    if group is not None:
        num_gpus = 0.0 if shares_gpus else group.bundle_specs[rank].get("GPU", 0.0)
        strategy = PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=rank)
    as_actor: Any = ray.remote(concurrency_groups={"control": _CONTROL_THREADS})  # type: ignore[call-overload]  # missing in Ray's stubs
    return (
        as_actor(Rank)
        .options(
            num_cpus=0,  # the bundle reserves them
            num_gpus=num_gpus,
            max_restarts=0,  # a restarted rank would have neither weights nor sessions
            max_task_retries=0,
            # A call that is cancelled before it was sent must not hold up those after it.
            allow_out_of_order_execution=True,
            # Several calls for every lease, of which Ray's control store would remember 100,000.
            enable_task_events=False,
            scheduling_strategy=strategy,
            runtime_env={"env_vars": rank_environment(model)},
        )
        .remote(kind, model, link, rank, model.tensor_parallel_size, logs_json)
    )
