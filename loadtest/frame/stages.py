"""Stages: what answers requests. Each is the same interface over another part of the product.

`engine` has the router's loop over engines of one process, without threads, sockets or HTTP.
`link` has draft and target in processes of their own (`links.py`). `http` has the whole service
(`services.py`). An experiment names its stages, and one line may be measured on all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from itertools import count
from pathlib import Path
from typing import Any, Protocol, Self

from deployments.local.engines import LocalEngines
from deployments.local.pair import LoadedPair, local_config
from loadtest.frame.runs import Answer, Ask, Run
from loadtest.frame.ways import Way
from models.protocol.messages import Grammar, Sampling
from models.protocol.rules import COUPLED
from router.drafters.draft_model import POOL
from router.generator import SpeculativeGenerator
from router.planning.adaptive import RouterPlanner
from router.planning.costs import PassCosts
from router.ports import EngineLease, EnginePool
from router.types import Delta, Finished, GenerationRequest, SpeculationSettings

# A draft is waited for on a slow machine, and only models draft unless a way says more.
ROUTER: Mapping[str, Any] = {
    "timeouts": {"draft_ms": 10_000},
    "speculation": {"prompt_lookup_max": 0, "suffix_decoding_max_tree_depth": 0},
}


@dataclass(frozen=True, kw_only=True)
class Models:
    """The models that a stage serves.

    Attributes:
        label: name of the pair in tables.
        target: folder of the target.
        drafts: folders of draft models; the first pool is `draft`.
        engine: fields of both models' sections: dtype, num_threads, max_model_len.
        router: fields of the section `router` in place of `ROUTER`'s; `speculation` is merged.
        url: of a service that others run, without /v1, for the stage `http`; "": ours is started.
        later: pool of drafts whose draft model takes the first one's place, unseen, after half of a
            run's requests; empty: none. Only the stage `engine` has it.
        draft_engine: fields of the draft models' sections in place of `engine`'s.
    """

    label: str
    target: Path
    drafts: Mapping[str, Path]
    engine: Mapping[str, Any] = field(default_factory=dict)
    router: Mapping[str, Any] = field(default_factory=dict)
    url: str = ""
    later: str = ""
    draft_engine: Mapping[str, Any] = field(default_factory=dict)

    def side_by_side(self, way: Way) -> Models:
        """Return them for a process each: the threads are shared out, a draft model has one.

        Threads spin while they wait for work. Beside each other on the same cores they would make
        every way slower, those with drafts the most.
        """
        threads = self.engine.get("num_threads", 1) - sum(map(way.sees, self.drafts))
        engine = {**self.engine, "num_threads": max(1, threads)}
        return replace(self, engine=engine, draft_engine={"num_threads": 1})

    def tree(self, way: Way) -> dict[str, Any]:
        """Return a config for `way`, as a tree of `deployments.config.schema.AppConfig`."""
        engine = {"enable_prefix_caching": False} | dict(self.engine)
        drafts = {
            name: engine | dict(self.draft_engine) | {"model_path": str(path)} | dict(way.draft)
            for name, path in self.drafts.items()
        }
        tree: dict[str, Any] = {
            "target": engine | {"model_path": str(self.target)} | dict(way.target),
            "router": {**ROUTER, **self.router, "speculation": self.speculation(way)},
            "drafts": {name: model for name, model in drafts.items() if name != POOL},
        }
        if POOL in drafts:
            tree["draft"] = drafts[POOL]
        return tree

    def speculation(self, way: Way) -> dict[str, Any]:
        """Return the fields of `router.speculation` for `way`."""
        return {
            **ROUTER["speculation"],
            "max_num_speculative_tokens": max(8, way.k or 0),
            **self.router.get("speculation", {}),
            **way.speculation,
        }


class Stage(Protocol):
    """Answers requests; its models are loaded when it is entered."""

    def run(self, asks: Sequence[Ask], way: Way, batch: int) -> Run:
        """Answer all requests, `batch` at a time. No run shares a cached prefix with another.

        Raises:
            ValueError: this stage cannot do what the way says; the message names the field.
            RuntimeError: an answer is an error.
        """
        ...


Opened = AbstractContextManager[Stage]
Opener = Callable[[Models], Opened]


class TurningPool:
    """Implements `router.ports.EnginePool` over several, one after another within a run.

    Args:
        pools: each gives as many leases as any other, the first one first.
    """

    def __init__(self, pools: Sequence[EnginePool]) -> None:
        self._pools = pools
        self._num_leases = self._num_given = 0

    def begin(self, num_leases: int) -> None:
        """Begin a run of so many leases with the first pool; after them the last one goes on."""
        self._num_leases, self._num_given = num_leases, 0

    async def lease(self, session_id: str, *, timeout_s: float) -> EngineLease:
        """See `router.ports.Pool.lease`."""
        place = len(self._pools) * self._num_given // self._num_leases
        self._num_given += 1
        pool = self._pools[min(place, len(self._pools) - 1)]
        return await pool.lease(session_id, timeout_s=timeout_s)


@dataclass(frozen=True)
class Line:
    """A router for one way. It keeps what it learns between runs.

    `turning` has a draft model that is replaced in each run.
    """

    router: SpeculativeGenerator
    turning: TurningPool | None = None

    @classmethod
    def over(cls, engines: LocalEngines, models: Models, way: Way) -> Line:
        """Return a router for `way` over engines."""
        config = local_config(models.tree(way)).router
        seen: dict[str, EnginePool] = {
            name: pool for name, pool in engines.draft_pools.items() if way.sees(name)
        }
        turning = None
        if models.later:
            seen[POOL] = turning = TurningPool((seen[POOL], seen.pop(models.later)))
        router = engines.router(config, planner=planner_of(way), draft_pools=seen)
        return cls(router, turning)


def planner_of(way: Way) -> RouterPlanner:
    """Return a planner for `way` that knows nothing yet."""
    return RouterPlanner(PassCosts(), pinned=way.k if way.is_pinned else None)


class Closing:
    """A context that closes itself at its end; a base of stages."""

    def __enter__(self) -> Self:
        """Return itself."""
        return self

    def __exit__(self, *exc_info: object) -> None:
        """Close it."""
        self.close()

    def close(self) -> None:
        """Free what it holds; nothing by default."""


class EngineStage(Closing):
    """Implements `Stage` with the router's loop over engines in this process."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._pairs: dict[str, LocalEngines] = {}  # by what ways change of the models
        self._lines: dict[str, Line] = {}
        self._runner = asyncio.Runner()
        self._numbers = count()

    def close(self) -> None:
        """Free the models."""
        for engines in self._pairs.values():
            self._runner.run(engines.close())
        self._runner.close()

    def run(self, asks: Sequence[Ask], way: Way, batch: int) -> Run:
        """See `Stage.run`."""
        line = self._line(way)
        if line.turning is not None:
            line.turning.begin(len(asks))
        name = f"run-{next(self._numbers)}"
        return self._runner.run(answer_all(line.router, asks, way, batch, name))

    def _line(self, way: Way) -> Line:
        if repr(way) not in self._lines:
            key = repr((way.target, way.draft))
            if key not in self._pairs:
                self._pairs[key] = LoadedPair(local_config(self._models.tree(way))).engines()
            self._lines[repr(way)] = Line.over(self._pairs[key], self._models, way)
        return self._lines[repr(way)]


async def answer_all(
    router: SpeculativeGenerator, asks: Sequence[Ask], way: Way, batch: int, name: str
) -> Run:
    """Answer all requests, `batch` at a time; `name` is unique among the runs of a router."""
    places = asyncio.Semaphore(batch)

    async def one(index: int, ask: Ask) -> Answer:
        async with places:
            await asyncio.sleep(ask.pause_s)
            return await _answer(router, request_of(ask, way, f"{name}-{index}", f"{name}-"))

    answers = await asyncio.gather(*(one(index, ask) for index, ask in enumerate(asks)))
    return Run(answers=answers, batch=batch)


def request_of(ask: Ask, way: Way, request_id: str, salt: str) -> GenerationRequest:
    """Return what a router is asked; `request_id` is unique among its requests."""
    schema = ask.schema if way.is_constrained else None
    return GenerationRequest(
        request_id=request_id,
        prompt_ids=ask.prompt_ids,
        sampling=Sampling(
            temperature=ask.temperature,
            seed=ask.seed,
            verification=way.speculation.get("verification", COUPLED.name),
        ),
        eos_ids=ask.eos_ids,
        max_tokens=ask.max_tokens,
        ignore_eos=ask.ignores_eos(is_constrained=way.is_constrained),
        grammar=None if schema is None else Grammar(kind="json_schema", text=schema),
        cache_salt=salt + ask.group,
        speculation=SpeculationSettings(
            enabled=way.k != 0,
            num_speculative_tokens=None if way.is_pinned else way.k or None,
            drafter=way.drafter,
        ),
    )


class NoText:
    """Implements `router.types.Detokenizer`: tokens are counted, not read."""

    def push(self, token_ids: Sequence[int]) -> str:
        """Return no text."""
        return ""

    def flush(self) -> str:
        """Return no text."""
        return ""


async def _answer(router: SpeculativeGenerator, request: GenerationRequest) -> Answer:
    token_ids: list[int] = []
    num_first, first_s = 0, 0.0
    finished: Finished | None = None
    began_s = time.perf_counter()
    async for event in router.generate(request, NoText()):  # to its end: it frees the session
        if isinstance(event, Delta) and event.token_ids:
            token_ids += event.token_ids
            if not num_first:
                num_first, first_s = len(token_ids), time.perf_counter()
        elif isinstance(event, Finished):
            finished = event
    if finished is None:
        raise RuntimeError("the stream ended without a finish")
    ended_s = time.perf_counter()
    return Answer(
        content=tuple(token_ids),
        num_tokens=len(token_ids),
        num_first=num_first,
        began_s=began_s,
        first_s=first_s or ended_s,
        ended_s=ended_s,
        stats=finished.speculation,
    )
