"""Scenarios of the router's planner in simulated time: machines, clients, routers, and their runs.

There is no clock and no model. The planner, its statistics and the forming of batches are the code
that serves; engines, links and acceptance are simulated.
"""

from __future__ import annotations

import random
import statistics
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from loadtest.simulate.engines import Events, Machine, SimulatedDraft, SimulatedTarget
from loadtest.simulate.sessions import (
    Acceptance,
    RequestKind,
    SimulatedClient,
    SimulatedRouter,
    World,
)
from router.drafters.ngram import NGRAM
from router.drafters.registry import DRAFTERS
from router.planning.acceptance import AcceptanceEstimate, AcceptancePool
from router.planning.adaptive import PlannedSession, RouterPlanner
from router.planning.costs import PassCosts
from router.planning.fixed import FixedPlanner
from router.ports import DrafterTraits
from router.rounds import SessionPlanner

FIXED_LENGTHS = (1, 2, 3, 4, 6, 8)
MAX_LENGTH = 8
_RUN_ON = 32
_WARM_UP_SHARE = 0.1  # part of the time, not counted


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A machine, clients and routers. Scenarios of one name have other numbers of clients."""

    name: str
    machine: Machine
    kinds: Sequence[RequestKind]  # one client each
    num_routers: int = 1


@dataclass(frozen=True)
class Outcome:
    """The results of a run."""

    tokens_per_s: float
    mean_batch: float  # sessions in a pass
    mean_k: float  # mean of the planner's choices; 0.0 if lengths are fixed
    predicted_share: float  # predicted over actual time of rounds with a draft
    lengths: dict[int, int]  # how often the planner chose each k


class Learning:
    """Statistics and costs that the sessions of one router share."""

    def __init__(self, events: Events) -> None:
        self._clock = lambda: events.now_ms / 1e3
        self.planner = RouterPlanner(PassCosts(), self._clock)
        self.pools = {
            name: AcceptancePool(kind.traits.prior_acceptance["free"])
            for name, kind in DRAFTERS.items()
        }

    def joint(self, drafter: DrafterTraits | None) -> tuple[SessionPlanner, PassCosts]:
        """Plan a session with all others."""
        return self._planned(self.planner)

    def alone(self, drafter: DrafterTraits | None) -> tuple[SessionPlanner, PassCosts]:
        """Plan a session that decides for itself, from the same measured costs."""
        return self._planned(RouterPlanner(self.planner.costs, self._clock))

    def _planned(self, planner: RouterPlanner) -> tuple[SessionPlanner, PassCosts]:
        estimates = {name: AcceptanceEstimate(pool) for name, pool in self.pools.items()}
        session = PlannedSession(
            planner, estimates, lambda: "target", max_length=MAX_LENGTH, run_on=_RUN_ON
        )
        return session, planner.costs

    def fixed(self, num_tokens: int) -> Callable[..., tuple[SessionPlanner, PassCosts]]:
        """Sessions that always draft `num_tokens`; 0: never."""

        return lambda drafter: (FixedPlanner(num_tokens, _RUN_ON), self.planner.costs)


def run(scenario: Scenario, policy: str | int, *, seconds: float, seed: int = 0) -> Outcome:
    """Simulate `seconds` of a scenario under "joint", "alone" or a fixed k."""
    events, random_ = Events(), random.Random(seed)
    machine = scenario.machine
    world = World(
        events=events,
        machine=machine,
        random_=random_,
        target=SimulatedTarget(events, machine, random_),
        draft=SimulatedDraft(events, machine, random_),
    )
    learning = [Learning(events) for _ in range(scenario.num_routers)]
    routers = [SimulatedRouter(events, machine) for _ in learning]
    clients = []
    for index, kind in enumerate(scenario.kinds):
        which = index % scenario.num_routers
        new_planner = _new_planner(learning[which], policy)
        used = RequestKind(
            acceptance=kind.acceptance,
            drafter=None if policy == 0 else kind.drafter,
            num_tokens=kind.num_tokens,
        )
        clients.append(SimulatedClient(f"{index}", world, routers[which], used, new_planner))
    events.run(_WARM_UP_SHARE * seconds * 1e3)
    before = sum(client.num_tokens for client in clients)
    events.run(seconds * 1e3)
    num_tokens = sum(client.num_tokens for client in clients) - before
    return _outcome(num_tokens / ((1.0 - _WARM_UP_SHARE) * seconds), world, learning)


def _new_planner(
    learning: Learning, policy: str | int
) -> Callable[[DrafterTraits | None], tuple[SessionPlanner, PassCosts]]:
    if isinstance(policy, int):
        return learning.fixed(policy)
    return learning.joint if policy == "joint" else learning.alone


def _outcome(tokens_per_s: float, world: World, learning: Sequence[Learning]) -> Outcome:
    stats = [each.planner.stats for each in learning]
    chosen = sum(sum(stat.lengths.values()) for stat in stats)
    drafted = sum(k * count for stat in stats for k, count in stat.lengths.items())
    actual_ms = sum(stat.actual_ms for stat in stats)
    return Outcome(
        tokens_per_s,
        statistics.fmean(world.target.batch_sizes),
        drafted / max(chosen, 1),
        sum(stat.predicted_ms for stat in stats) / max(actual_ms, 1e-9),
        dict(sum((stat.lengths for stat in stats), Counter())),
    )


# --- scenarios ----------------------------------------------------------------------------------


def line(base_ms: float, row_ms: float) -> Callable[[int, int], float]:
    """Return the time of a pass: `base_ms` and `row_ms` for each row."""
    return lambda num_rows, num_sessions: base_ms + row_ms * num_rows


CPU_DEMO = Machine(pass_ms=line(6.6, 0.4), step_ms=lambda n: 1.85 + 0.15 * n, net_ms=0.15)
CPU_349M = Machine(
    pass_ms=lambda rows, sessions: 44.0 + 1.8 * sessions + 0.6 * rows + 0.04 * sessions * rows,
    step_ms=lambda n: 2.5 + 0.3 * n,
    net_ms=0.15,
)
GPU = Machine(pass_ms=line(20.0, 0.25), step_ms=lambda n: 2.0 + 0.01 * n, net_ms=0.5)
GPU_FULL = Machine(  # compute-bound from 32 rows on
    pass_ms=lambda rows, sessions: max(20.0, 0.62 * rows), step_ms=lambda n: 2.0, net_ms=0.5
)


def constant(acceptance: float) -> Acceptance:
    """Return an acceptance that never changes."""
    return lambda now_ms: acceptance


def turning(first: float, then: float, at_ms: float) -> Acceptance:
    """`first` until `at_ms`, then the other."""
    return lambda now_ms: first if now_ms < at_ms else then


def _same(acceptance: Acceptance, num_clients: int) -> list[RequestKind]:
    return [RequestKind(acceptance=acceptance) for _ in range(num_clients)]


def _spread(num_clients: int) -> list[RequestKind]:
    rates = (0.9, 0.5, 0.8, 0.3)
    return [RequestKind(acceptance=constant(rates[i % 4])) for i in range(num_clients)]


def scenarios() -> list[Scenario]:
    """Return all scenarios; tests hold the planner to some of them."""
    found = []
    machines = {"cpu-demo": CPU_DEMO, "cpu-349m": CPU_349M, "gpu": GPU, "gpu-full": GPU_FULL}
    for name, machine in machines.items():
        for batch in (1, 4, 8, 16):
            for acceptance in (0.5, 0.7, 0.9):
                found.append(
                    Scenario(
                        name=f"{name} a={acceptance}",
                        machine=machine,
                        kinds=_same(constant(acceptance), batch),
                    )
                )
        for batch in (4, 16):
            found.append(Scenario(name=f"{name} mixed", machine=machine, kinds=_spread(batch)))
    for name in ("cpu-demo", "gpu"):
        for first, then in ((0.9, 0.2), (0.2, 0.9)):
            found.append(
                Scenario(
                    name=f"{name} a={first} to {then}",
                    machine=machines[name],
                    kinds=_same(turning(first, then, 10_000.0), 8),
                )
            )
        found.append(
            Scenario(
                name=f"{name} a=0.7, 2 routers",
                machine=machines[name],
                kinds=_same(constant(0.7), 8),
                num_routers=2,
            )
        )
        lookup = RequestKind(acceptance=constant(0.4), drafter=NGRAM.traits)
        found.append(
            Scenario(
                name=f"{name} half lookup",
                machine=machines[name],
                kinds=[*_same(constant(0.7), 4), *[lookup] * 4],
            )
        )
    return found
