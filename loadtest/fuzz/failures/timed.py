"""Engines with the times of a machine that is not here: passes are simulated, time is virtual.

So is the loop around an engine, which waits on virtual time (`TimedEngine`). All else is the code
that serves: router, planner, engines, sessions, blocks, leases.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from deployments.ingress.pools import ServePool
from deployments.link.leases import LeaseKey
from loadtest.frame.runs import Ask, Run
from loadtest.frame.stages import answer_all
from loadtest.frame.ways import Way
from loadtest.fuzz.failures.cluster import Deployment, Links, Make
from loadtest.fuzz.failures.engines import EngineProcess, SimulatedModel
from loadtest.fuzz.failures.model import MAX_MODEL_LEN, TARGET, logits_table
from loadtest.fuzz.failures.network import FaultRates, Network
from loadtest.fuzz.failures.part import virtual_runner
from loadtest.fuzz.failures.processes import Process
from models.protocol.messages import EngineReply
from router.drafters.draft_model import POOL
from router.generator import SpeculativeGenerator
from router.limits import SessionLimits, SpeculationLimits
from router.planning.adaptive import RouterPlanner
from router.planning.costs import PassCosts
from router.services import Services

_MAX_ROWS = 1024  # of a pass
_NUM_BLOCKS = 16_384
_MAX_K = 8
_SEED = 0


@dataclass(frozen=True, kw_only=True)
class Costs:
    """The time of a pass of one row, and of each further row, seconds."""

    pass_s: float
    row_s: float

    def of(self, num_rows: int) -> float:
        """Return the time of a pass."""
        return self.pass_s + (num_rows - 1) * self.row_s


@dataclass(frozen=True, kw_only=True)
class TimedPair:
    """A pair on devices of its own each.

    Attributes:
        target, draft: their times.
        noise: of the draft's logits beside the target's.
    """

    target: Costs
    draft: Costs
    noise: float


class TimedEngine(EngineProcess):
    """An engine that takes the time of its costs; a wait for a batch ends with the next message."""

    def __init__(
        self,
        network: Network,
        address: str,
        name: str,
        epoch: int,
        model: SimulatedModel,
        costs: Costs,
    ) -> None:
        self._costs = costs
        self._is_held = False  # until a message comes, or the batch has been waited for
        super().__init__(network, address, name, epoch, model)

    def spend(self, num_rows: int) -> None:
        """See `EngineProcess.spend`."""
        self._spent_s += self._costs.of(num_rows)

    @property
    def _has_work(self) -> bool:
        return self.engine.has_work and not self._is_held

    def _turn(self) -> None:
        for sender, message in self.receive(0.0):
            self.engine.submit(message, sender)
        self._is_held = False
        if not self.engine.has_work:
            return
        wait_s = self.engine.wait_s(self.clock())
        if wait_s > 0.0:
            self._is_held = True
            self.network.later(wait_s, self.wake)
            return
        self.send(self.engine.step())

    def _release(self, key: LeaseKey) -> None:
        super()._release(key)
        self.engine.close(key[0])


class _World:
    """One target, one draft and a router for each way, within an event loop of virtual time."""

    def __init__(self, network: Network, pair: TimedPair) -> None:
        self._network = network
        parts = {
            "target": (_model(TARGET, is_target=True), pair.target),
            POOL: (_model(logits_table(pair.noise), is_target=False), pair.draft),
        }
        self._deployments = {
            kind: Deployment(network, kind, self._make(*part), 1) for kind, part in parts.items()
        }
        self._routers: dict[str, SpeculativeGenerator] = {}

    def _make(self, model: SimulatedModel, costs: Costs) -> Make:
        def make(address: str, name: str, epoch: int) -> Process:
            return TimedEngine(self._network, address, name, epoch, model, costs)

        return make

    async def router(self, way: Way) -> SpeculativeGenerator:
        """Return the router of a way; it keeps what it learns."""
        if repr(way) not in self._routers:
            links = Links(self._network, f"router{len(self._routers)}", self._deployments)

            def pool(kind: str) -> ServePool[Any, Any]:
                client: Any = links
                return ServePool(self._deployments[kind].handle(), client, EngineReply)

            services = Services(
                target_pool=pool("target"),
                draft_pools={POOL: pool(POOL)},
                constraint_pool=None,
                speculation=SpeculationLimits(
                    **{
                        "max_num_speculative_tokens": _MAX_K,
                        "suffix_decoding_max_tree_depth": 0,
                        "prompt_lookup_max": 0,
                        **way.speculation,
                    }
                ),
                limits=SessionLimits(),
                planner=RouterPlanner(PassCosts(), clock=self._network.now),
            )
            self._routers[repr(way)] = SpeculativeGenerator(services, max_model_len=MAX_MODEL_LEN)
        return self._routers[repr(way)]

    @property
    def draft(self) -> TimedEngine:
        """The draft's engine."""
        (process,) = self._deployments[POOL].processes
        assert isinstance(process, TimedEngine)
        return process

    async def close(self) -> None:
        """End the processes."""
        for deployment in self._deployments.values():
            for process in deployment.processes:
                await process.closed()


def _model(table: Tensor, *, is_target: bool) -> SimulatedModel:
    return SimulatedModel(
        is_target=is_target, table=table, num_blocks=_NUM_BLOCKS, max_rows=_MAX_ROWS
    )


class TimedStage:
    """Implements `Stage` on virtual time. Made by `timed_stage`."""

    def __init__(self, runner: Any, world: _World) -> None:
        self._runner = runner
        self._world = world
        self._num_runs = 0

    @property
    def num_draft_rows(self) -> int:
        """Rows that the draft model has computed."""
        load = self._world.draft.engine.load()
        return load.num_prefill_rows + load.num_decode_rows

    def run(self, asks: Sequence[Ask], way: Way, batch: int) -> Run:
        """See `Stage.run`."""
        self._num_runs += 1
        router = self._runner.run(self._world.router(way))
        run: Run = self._runner.run(answer_all(router, asks, way, batch, f"run-{self._num_runs}"))
        return run


@contextmanager
def timed_stage(pair: TimedPair) -> Iterator[TimedStage]:
    """Yield a stage for a pair."""

    async def made() -> _World:
        return _World(Network(random.Random(_SEED), FaultRates()), pair)

    with virtual_runner(_SEED) as runner:
        world = runner.run(made())
        try:
            yield TimedStage(runner, world)
        finally:
            runner.run(world.close())
