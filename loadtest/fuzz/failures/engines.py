"""Engines with their session tables, schedulers and KV blocks, in the loop that leaders run.

Only their passes are simulated (`model.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from torch import Tensor

from deployments.engine.loop import EngineLoop
from deployments.link.leases import LeaseKey
from loadtest.fuzz.failures.model import BLOCK_SIZE, SimulatedRunner
from loadtest.fuzz.failures.network import Network
from loadtest.fuzz.failures.processes import Process, Sender
from models.engine.base import Engine
from models.engine.draft import DraftEngine
from models.engine.target import TargetEngine
from models.protocol.messages import (
    Endpoint,
    EngineReply,
    EngineRequest,
    MaskMiss,
    MaskRequest,
    Masks,
    Verify,
)

IDLE_S = 20.0  # silent sessions lose their leases
_MASK_WAIT_S = 0.15
_MASK_POLL_S = 0.01


@dataclass(frozen=True, kw_only=True)
class SimulatedModel:
    """A model on a draft or a target engine.

    Attributes:
        is_target: a draft engine otherwise.
        table: of its logits.
        num_blocks: of its KV cache.
        max_rows: of a pass; few, so that prompts are read in chunks.
    """

    is_target: bool
    table: Tensor
    num_blocks: int
    max_rows: int = 4 * BLOCK_SIZE


class EngineProcess(Process):
    """A draft or target engine in the loop that leaders run. Implements its `EnginePort`.

    Args:
        network, address, name, epoch: see `Process`.
        model: that it has.
    """

    def __init__(
        self,
        network: Network,
        address: str,
        name: str,
        epoch: int,
        model: SimulatedModel,
    ) -> None:
        super().__init__(network, address, name, epoch)
        self.poison: dict[str, int] = {}  # verifies until a session of that id brings it down
        self.on_poisoned: Callable[[Process], None] = lambda process: None
        self.masks = SimulatedMasks(self)
        runner: Any = SimulatedRunner(model.table, model.num_blocks, model.max_rows, self.spend)
        kind = TargetEngine if model.is_target else DraftEngine
        self.engine: Engine = kind(
            runner, self.masks, epoch, clock=self.clock, mask_wait_s=_MASK_WAIT_S
        )
        self._loop = EngineLoop(
            self.engine, self, idle_timeout_s=IDLE_S, poll_s=0.0, clock=self.clock
        )
        self.leases = self._loop.leases

    def receive(self, timeout_s: float) -> Iterable[tuple[object, EngineRequest]]:
        """See `EnginePort.receive`; what comes during a wait is taken after it."""
        self._spent_s += timeout_s
        messages, self._inbox = self._inbox, []
        return messages

    def send(self, replies: list[tuple[object, EngineReply]]) -> None:
        """See `EnginePort.send`."""
        self._outbox += cast("list[tuple[Sender, EngineReply]]", replies)

    def take(self, sender: Sender, message: Any) -> None:
        """See `Process.take`; a poisonous session brings it down."""
        left = self.poison.get(message.session_id)
        if left is not None and isinstance(message, Verify):
            self.poison[message.session_id] = left - 1
            if left <= 1:
                self.network.note(f"{self.name}: poisoned by {message.session_id}")
                self.network.later(0.002, self.on_poisoned, self)
        super().take(sender, message)

    def spend(self, num_rows: int) -> None:
        """Take the time of a pass."""
        seconds = (0.004 + 0.0004 * num_rows) * self.network.rng.uniform(0.9, 1.3)
        self._spent_s += seconds * self.slowness

    def spend_wait(self, seconds: float) -> None:
        """Take the time of a wait."""
        self._spent_s += seconds

    @property
    def _has_work(self) -> bool:
        return self.engine.has_work

    def _turn(self) -> None:
        self._loop.tick()

    def _release(self, key: LeaseKey) -> None:
        self._loop.release(*key)

    def left(self) -> list[str]:
        """See `Process.left`."""
        load = self.engine.load()
        num_leases = self._loop.stats().num_sessions
        found = [f"{num_leases} leases"] if num_leases else []
        found += [f"{load.num_sessions} sessions"] if load.num_sessions else []
        if load.num_free_blocks != load.num_blocks:
            found.append(f"{load.num_blocks - load.num_free_blocks} KV blocks")
        if self.masks.endpoints:
            found.append(f"masks of {sorted(self.masks.endpoints)}")
        self.engine.runner.pool.check(self.engine.block_tables())
        return [f"{self.name} still holds {what}" for what in found]


class SimulatedMasks:
    """A `models.grammar.masks.MaskSource` over the network, as `link.masks` over sockets."""

    def __init__(self, process: EngineProcess) -> None:
        self._process = process
        self.endpoints: dict[str, Endpoint] = {}
        self.processes: Mapping[str, Process] = {}  # constraint replicas by address
        self._replies: list[Masks | MaskMiss] = []

    def open(self, session_id: str, endpoint: Endpoint) -> None:
        """See `MaskSource.open`."""
        self.endpoints[session_id] = endpoint

    def request(self, requests: Sequence[MaskRequest]) -> None:
        """See `MaskSource.request`."""
        for request in requests:
            endpoint = self.endpoints.get(request.session_id)
            if endpoint is not None:
                way = f"{self._process.name} > {endpoint.public_key}"
                self._process.network.carry(
                    way, "constraint request", request, partial(self._deliver, endpoint)
                )

    def poll(self, timeout_s: float) -> list[Masks | MaskMiss]:
        """See `MaskSource.poll`; a wait takes its time."""
        if timeout_s > 0.0 and not self._replies:
            self._process.spend_wait(_MASK_POLL_S)
        replies, self._replies = self._replies, []
        return replies

    def close(self, session_id: str) -> None:
        """See `MaskSource.close`."""
        self.endpoints.pop(session_id, None)

    def _deliver(self, endpoint: Endpoint, request: MaskRequest) -> None:
        process = self.processes.get(endpoint.address)
        if process is None or not process.is_alive or process.name != endpoint.public_key:
            session_id, ticket = request.session_id, request.ticket
            self._take(MaskMiss(session_id=session_id, ticket=ticket, reason="failed"))
        elif process.allows(self._process.name, endpoint):
            process.take(lambda reply: self._reply(process.name, reply), request)

    def _reply(self, sender: str, reply: Any) -> None:
        way = f"{sender} > {self._process.name}"
        self._process.network.carry(way, "constraint reply", reply, self._take)

    def _take(self, reply: Masks | MaskMiss) -> None:
        if self._process.is_alive:
            self._replies.append(reply)
            self._process.wake()
