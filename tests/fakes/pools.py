"""A pool of scripted engines: links that lose messages, replicas that crash or fall silent.

Replicas fail at a chosen point: any send, receive, lease or release. Pools may share one count of
such points, so that a test can go through all of them. A replica that is gone is replaced by an
empty one, which may refuse leases at first, as a process that starts.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, Protocol

from deployments.link.mailbox import Mailbox
from models.protocol.errors import NoReplica, Unavailable
from models.protocol.messages import Endpoint, LeaseGrant
from tests.fakes.router import ScriptedEngine

Fault = Literal["crash", "stop"]


class Faults:
    """Counts the points of `pools` (empty: all); at those in `at` the pool fails."""

    def __init__(
        self, at: Collection[int] = (), kind: Fault = "crash", pools: Sequence[str] = ()
    ) -> None:
        self._at = at
        self._kind: Fault = kind
        self._pools = pools
        self.names: list[str] = []  # "pool.operation" of each point passed

    def point(self, pool: ScriptedPool, operation: str) -> None:
        if self._pools and pool.name not in self._pools:
            return
        number = len(self.names)
        self.names.append(f"{pool.name}.{operation}")
        if number in self._at:
            pool.fail(self._kind)


class Process(Protocol):
    epoch: int

    def handle(self, message: Any) -> list[Any]: ...


class ScriptedChannel:
    """A link to the pool's process that loses, doubles, delays and reorders at random."""

    def __init__(self, pool: ScriptedPool) -> None:
        self._pool = pool
        self._process = pool.process
        self._held: list[Any] = []
        self._mailbox: Mailbox[Any] = Mailbox()

    def send(self, message: Any) -> None:
        self._point("send")
        if self._process is not self._pool.process or self._happens():
            return
        self._held.append(message)
        if self._happens():
            return  # late: goes out with a later message
        if self._happens():
            self._held.append(message)
        if self._happens():
            self._pool.rng.shuffle(self._held)
        replies = [reply for held in self._held for reply in self._process.handle(held)]
        self._held = []
        self._deliver(replies)

    def _deliver(self, replies: list[Any]) -> None:
        if self._happens():
            self._pool.rng.shuffle(replies)
        for reply in replies:
            if self._happens():
                continue
            self._mailbox.put(reply)
            if self._happens():
                self._mailbox.put(reply)

    def _happens(self) -> bool:
        return self._pool.rng.random() < self._pool.fault_rate

    async def receive(self) -> Any:
        self._point("receive")
        return await self._mailbox.get()

    def peek(self) -> Any:
        return self._mailbox.peek()

    def lose(self) -> None:
        self._mailbox.mark_lost(f"{self._pool.name} crashed")

    def _point(self, operation: str) -> None:
        if self._process is self._pool.process:
            self._pool.faults.point(self._pool, operation)


class ScriptedLease:
    def __init__(self, pool: ScriptedPool) -> None:
        self.channel = ScriptedChannel(pool)
        self.is_released = False
        self._pool = pool
        replica = f"{pool.name}-{pool.process.epoch}"
        self.grant = LeaseGrant(
            endpoint=Endpoint(address=pool.name, public_key="", epoch=pool.process.epoch),
            asker_key=replica,
            replica=replica,
        )

    async def release(self) -> None:
        self._pool.faults.point(self._pool, "release")
        await asyncio.sleep(0)
        self.is_released = True


class ScriptedPool:
    """Leases on the newest process; `fail` ends it and starts the next one, empty.

    Args:
        make: the process of an epoch.
        name: of the pool, in its faults and its replicas' names.
        faults: where its replicas fail; None: nowhere.
        fault_rate: how often a link does each of its faults.
        seed: of the links' faults.
        num_refusals: of leases, after each failure.
        refusal: with which a lease is refused.
    """

    def __init__(
        self,
        make: Callable[[int], Process] = ScriptedEngine,
        *,
        name: str = "target",
        faults: Faults | None = None,
        fault_rate: float = 0.0,
        seed: int = 0,
        num_refusals: float = 0,
        refusal: type[Unavailable] = NoReplica,
    ) -> None:
        self.name = name
        self.faults = faults or Faults()
        self.fault_rate = fault_rate
        self.rng = random.Random(seed)
        self.leases: list[ScriptedLease] = []
        self.num_refusals_left: float = 0
        self._make = make
        self._num_refusals = num_refusals
        self._refusal = refusal
        self.process: Any = make(1)

    async def lease(self, session_id: str, *, timeout_s: float) -> ScriptedLease:
        self.faults.point(self, "lease")
        await asyncio.sleep(0)
        if self.num_refusals_left > 0:
            self.num_refusals_left -= 1
            raise self._refusal(f"{self.name} refuses")
        lease = ScriptedLease(self)
        self.leases.append(lease)
        self.faults.point(self, "granted")
        return lease

    def fail(self, kind: Fault) -> None:
        """`crash`: everybody hears of it; `stop`: it only says nothing any more."""
        self.process = self._make(self.process.epoch + 1)
        self.num_refusals_left = self._num_refusals
        if kind == "crash":
            for lease in self.leases:
                lease.channel.lose()
