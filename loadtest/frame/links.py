"""The stage `link`: draft and target in processes of their own, over real links. No HTTP.

It measures the cost of serving over the engines: leases, frames and the waking of other processes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from itertools import count
from types import TracebackType
from typing import Self

from deployments.local.pair import local_config
from loadtest.frame.ranks import ProcessPool
from loadtest.frame.runs import Ask, Run
from loadtest.frame.stages import Line, Models, RunClock, answer_all, planner_of
from loadtest.frame.ways import Way
from router.generator import SpeculativeGenerator
from router.services import Services


class LinkStage:
    """Implements `Stage`. Grammars are not served here."""

    def __init__(self, models: Models) -> None:
        self._models = models
        self._runner = asyncio.Runner()  # sockets stay with their event loop
        config = local_config(models.tree(Way()))
        self._target = ProcessPool("target", config.target)
        self._drafts = {
            name: ProcessPool("draft", model) for name, model in config.draft_models.items()
        }
        self._lines: dict[str, Line] = {}
        self._numbers = count()

    def __enter__(self) -> Self:
        """Wait until the models are loaded."""
        try:
            for pool in (self._target, *self._drafts.values()):
                pool.wait_ready()
        except BaseException:
            self._close()
            raise
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the processes."""
        self._close()

    def run(self, asks: Sequence[Ask], way: Way, batch: int) -> Run:
        """See `Stage.run`."""
        if (
            way.target
            or way.draft
            or any(ask.schema is not None and way.is_constrained for ask in asks)
        ):
            raise ValueError("the stage link serves no grammars and no other models")
        line = self._line(way)
        with line.clock:
            name = f"run-{next(self._numbers)}"
            return self._runner.run(answer_all(line.router, asks, way, batch, name))

    def _line(self, way: Way) -> Line:
        if repr(way) not in self._lines:
            clock = RunClock()
            config = local_config(self._models.tree(way)).router
            services = Services(
                target_pool=self._target,
                draft_pools={n: p for n, p in self._drafts.items() if way.sees(n)},
                constraint_pool=None,
                speculation=config.speculation,
                limits=config.timeouts,
                planner=planner_of(way, clock),
            )
            router = SpeculativeGenerator(services, max_model_len=config.max_model_len)
            self._lines[repr(way)] = Line(router, clock)
        return self._lines[repr(way)]

    def _close(self) -> None:
        for pool in (self._target, *self._drafts.values()):
            self._runner.run(pool.close())
        self._runner.close()
