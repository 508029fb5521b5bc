"""One schedule: routers, replicas, requests and what befalls them, drawn from one seed.

It is judged at its end. Each request has one end, and its text is the model's own or the beginning
of it. No session outlives the sum of its limits. Losses are counted, and nothing is left anywhere.
"""

from __future__ import annotations

import asyncio
import math
import random
from typing import Any

from deployments.ingress.pools import PlacedServePool, ServePool
from deployments.ingress.quarantine import Quarantine
from deployments.serve.nearest import READY_S
from deployments.serve.timed_names import avoided
from loadtest.fuzz.failures.cluster import Deployment, Links, Make
from loadtest.fuzz.failures.constraints import ConstraintProcess
from loadtest.fuzz.failures.engines import EngineProcess, SimulatedModel
from loadtest.fuzz.failures.faults import Faults
from loadtest.fuzz.failures.model import (
    BLOCK_SIZE,
    DRAFT,
    MAX_MODEL_LEN,
    TARGET,
    VOCAB_SIZE,
)
from loadtest.fuzz.failures.network import FaultRates, Network
from loadtest.fuzz.failures.processes import Process
from loadtest.fuzz.failures.readers import (
    LIMITS,
    MAX_PROMPT,
    Reader,
    Router,
    drawn_request,
)
from models.protocol.messages import ConstraintReply, EngineReply
from router.drafters.draft_model import POOL
from router.generator import SpeculativeGenerator
from router.limits import SpeculationLimits
from router.planning.adaptive import RouterPlanner
from router.planning.costs import PassCosts
from router.services import Services

_DRAIN_S = 100.0  # leases whose end was lost idle out before
_PROBED_S = 2.0  # Serve waits no longer for a load
_MAX_K = 4
_TIGHT = 0.3  # share of schedules whose replicas have few places
_SPARED = 0.3  # share of those whose target has a spare


class Schedule:
    """Draws and runs one schedule, in an event loop with virtual time."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(seed)
        self.network = Network(rng, FaultRates.drawn(rng))
        self.places = rng.choice((1, 1, 2)) if rng.random() < _TIGHT else math.inf  # of a replica
        num_streams = rng.choice((1, 2, 3, 4) if self.places == math.inf else (3, 4, 6))
        self._has_spare = random.Random(f"spare {seed}").random() < _SPARED
        # Verifies of a session until it brings down its target.
        self._poison = {"s0": rng.randint(1, 3)} if rng.random() < 0.15 else {}
        shared = [rng.randrange(1, VOCAB_SIZE) for _ in range(MAX_PROMPT)]
        requests = [drawn_request(rng, f"s{i}", shared) for i in range(num_streams)]
        longest = max(len(request.prompt_ids) + request.max_tokens for request in requests)
        self._least_blocks = (longest + 2 * _MAX_K) // BLOCK_SIZE
        self.deployments: dict[str, Deployment] = {}
        self._deploy("constraint", self._constraint, rng.choice((1, 1, 2)))
        self._deploy("target", self._engine("target"), rng.choice((1, 2, 3)))
        self._deploy("draft", self._engine("draft"), rng.choice((1, 1, 2)))
        self.routers = [self._router(f"router{i}") for i in range(rng.choice((1, 1, 2)))]
        self.readers = [
            Reader.drawn(self.network, request, rng.choice(self.routers)) for request in requests
        ]
        Faults(self.network, self.deployments, self._silence)

    # --- the world

    def _deploy(self, kind: str, make: Make, num_replicas: int) -> None:
        self.deployments[kind] = Deployment(self.network, kind, make, num_replicas, self.places)

    def _constraint(self, address: str, name: str, epoch: int) -> Process:
        return ConstraintProcess(self.network, address, name, epoch)

    def _engine(self, kind: str) -> Make:
        num_blocks = self._least_blocks + self.network.rng.choice((0, 2, 30))
        is_target = kind == "target"
        table = TARGET if is_target else DRAFT
        model = SimulatedModel(is_target=is_target, table=table, num_blocks=num_blocks)

        def make(address: str, name: str, epoch: int) -> Process:
            process = EngineProcess(self.network, address, name, epoch, model)
            process.masks.processes = self.deployments["constraint"].addresses
            if is_target and self._has_spare:
                process.metadata[READY_S] = self.network.now()
            if is_target:
                process.poison = dict(self._poison)
                process.on_poisoned = self._kill_target
            return process

        return make

    def _kill_target(self, process: Process) -> None:
        self.deployments["target"].kill(process)

    def _router(self, name: str) -> Router:
        links = Links(self.network, name, self.deployments)

        def pool(kind: str, reply_type: Any) -> ServePool[Any, Any]:
            client: Any = links
            make = PlacedServePool if kind == "target" else ServePool
            return make(self.deployments[kind].handle(), client, reply_type)

        services = Services(
            target_pool=pool("target", EngineReply),
            draft_pools={POOL: pool("draft", EngineReply)},
            constraint_pool=pool("constraint", ConstraintReply),
            speculation=SpeculationLimits(
                max_num_speculative_tokens=_MAX_K,
                run_on_tokens=self.network.rng.choice((0, 2, 16)),
                draft_ahead=self.network.rng.choice((0, 1, 9)),
            ),
            limits=LIMITS,
            planner=RouterPlanner(PassCosts(), clock=self.network.now),
        )
        services.losses.on_lost = avoided().add
        generator = SpeculativeGenerator(services, max_model_len=MAX_MODEL_LEN)
        return Router(links, services, generator, Quarantine(self.network.now))

    def _silence(self, process: Process) -> None:
        for router in self.routers:
            router.links.silence(process)

    # --- running

    async def run(self) -> list[str]:
        """Run it to its end; return the complaints."""
        async with asyncio.TaskGroup() as tasks:
            for reader in self.readers:
                tasks.create_task(reader.read())
        found = [line for reader in self.readers for line in reader.complaints]
        found += self._unreleased()
        await self._drain()
        found += self._left()
        for deployment in self.deployments.values():
            for process in deployment.processes:
                await process.closed()
                found += [process.failure] if process.failure else []
                if isinstance(process, EngineProcess):
                    self.network.counts["preempted"] += process.engine.load().num_preemptions
        others = asyncio.all_tasks() - {asyncio.current_task()}
        return found + sorted(f"task left: {task.get_name()}" for task in others)

    def _unreleased(self) -> list[str]:
        """Return what routers have not given back; at most its end may be on its way."""
        found = [
            f"{stream.name}: a lease on a {deployment.kind} was not given back"
            for deployment in self.deployments.values()
            for handle in deployment.handles
            for stream in handle.streams
            if not stream.is_cancelled
        ]
        for router in self.routers:
            held = {
                "channels are open": router.links.num_open,
                "sessions are closing": len(router.services.closings),
                "sessions are planned for": router.services.planner.num_sessions,
            }
            for part, losses in router.services.losses.by_part().items():
                held[f"times a {part} answered nonsense"] = losses.num_lost["fault"]
            found += [f"{router.links.public_key}: {n} {what}" for what, n in held.items() if n]
        return found

    async def _drain(self) -> None:
        """Let what goes on find out what has ended; nothing hangs any more."""
        began_s = self.network.now()
        for deployment in self.deployments.values():
            deployment.handles.clear()  # no router probes what starts from now on
        await asyncio.sleep(_PROBED_S)
        while self._left() and self.network.now() - began_s < _DRAIN_S:  # virtual
            for process in self._alive():
                process.go_on()
            await asyncio.sleep(2.0)

    def _alive(self) -> list[Process]:
        return [one for deployment in self.deployments.values() for one in deployment.alive]

    def _left(self) -> list[str]:
        return [what for process in self._alive() for what in process.left()]
