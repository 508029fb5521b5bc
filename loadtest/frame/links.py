"""The stage `link`: draft and target in processes of their own, over real links. No HTTP.

It measures the cost of serving over the engines: leases, frames and the waking of other processes.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from itertools import count
from typing import Any, TypeVar

from deployments.config.schema import RouterConfig
from deployments.config.sections.models import ModelConfig
from deployments.local.pair import local_config
from loadtest.frame.ranks import ProcessPool
from loadtest.frame.runs import Ask, Run
from loadtest.frame.stages import Closing, Models, answer_all, planner_of
from loadtest.frame.ways import Way
from router.generator import SpeculativeGenerator
from router.services import Services

Result = TypeVar("Result")


class LinkedStage(Closing):
    """Implements `Stage` over models of any config. Grammars are not served here.

    Args:
        target: of the target's process.
        drafts: of the drafts' processes, by the names of their pools.
        router: returns the section of the router for a way.
    """

    def __init__(
        self,
        target: ModelConfig,
        drafts: Mapping[str, ModelConfig],
        router: Callable[[Way], RouterConfig],
    ) -> None:
        self._config = router
        self._runner = asyncio.Runner()  # sockets stay with their event loop
        cores = _cores_of([target, *drafts.values()])
        self._target = ProcessPool("target", target, next(cores))
        self._drafts = {
            name: ProcessPool("draft", model, next(cores)) for name, model in drafts.items()
        }
        self._routers: dict[str, SpeculativeGenerator] = {}
        self._numbers = count()
        try:
            for pool in (self._target, *self._drafts.values()):
                pool.wait_ready()
        except BaseException:
            self.close()
            raise

    def run(self, asks: Sequence[Ask], way: Way, batch: int) -> Run:
        """See `Stage.run`."""
        if any(ask.schema is not None and way.is_constrained for ask in asks):
            raise ValueError("the stage link serves no grammars")
        name = f"run-{next(self._numbers)}"
        return self.use(way, lambda router: answer_all(router, asks, way, batch, name))

    def use(
        self, way: Way, work: Callable[[SpeculativeGenerator], Coroutine[Any, Any, Result]]
    ) -> Result:
        """Return the result of `work` with the router of a way.

        Raises:
            ValueError: this stage has no such models.
        """
        if way.target or way.draft:
            raise ValueError("target, draft: the stage link has no other models")
        return self._runner.run(work(self._router_for(way)))

    def _router_for(self, way: Way) -> SpeculativeGenerator:
        if repr(way) not in self._routers:
            config = self._config(way)
            services = Services(
                target_pool=self._target,
                draft_pools={n: p for n, p in self._drafts.items() if way.sees(n)},
                constraint_pool=None,
                speculation=config.speculation,
                limits=config.timeouts,
                planner=planner_of(way),
            )
            made = SpeculativeGenerator(services, max_model_len=config.max_model_len)
            self._routers[repr(way)] = made
        return self._routers[repr(way)]

    def close(self) -> None:
        """End the processes."""
        for pool in (self._target, *self._drafts.values()):
            self._runner.run(pool.close())
        self._runner.close()


def _cores_of(models: Sequence[ModelConfig]) -> Iterator[Collection[int]]:
    """Yield cores of its own for each model; none where there are too few for all threads."""
    there = sorted(os.sched_getaffinity(0))
    on_cpu = [model for model in models if model.device == "cpu"]
    has_room = sum(model.num_threads for model in on_cpu) <= len(there)
    for model in models:
        num_own = model.num_threads if has_room and model.device == "cpu" else 0
        own, there = there[:num_own], there[num_own:]
        yield own


class LinkStage(LinkedStage):
    """Implements `Stage` over the models of a pair."""

    def __init__(self, models: Models) -> None:
        models = models.side_by_side(Way())
        config = local_config(models.tree(Way()))
        super().__init__(
            config.target, config.draft_models, lambda way: local_config(models.tree(way)).router
        )
