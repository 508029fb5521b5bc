"""Replicas that crash or fall silent at a chosen point: any send, receive, lease or release.

Pools share one count of such points, so that a test can go through all of them. A replica that is
gone is replaced by an empty one, which is granted after a few refusals, as a process that starts.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, Protocol

from deployments.link.mailbox import Mailbox
from models.protocol.errors import NoReplica, Unavailable
from models.protocol.messages import (
    Endpoint,
    LeaseGrant,
)

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

    def point(self, pool: FaultyPool, operation: str) -> None:
        if self._pools and pool.name not in self._pools:
            return
        number = len(self.names)
        self.names.append(f"{pool.name}.{operation}")
        if number in self._at:
            pool.fail(self._kind)


class Process(Protocol):
    epoch: int

    def handle(self, message: Any) -> list[Any]: ...


class FaultyChannel:
    def __init__(self, pool: FaultyPool) -> None:
        self._pool = pool
        self._process = pool.process
        self._mailbox: Mailbox[Any] = Mailbox()

    def send(self, message: Any) -> None:
        self._point("send")
        if self._process is self._pool.process:
            for reply in self._process.handle(message):
                self._mailbox.put(reply)

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


class FaultyLease:
    def __init__(self, pool: FaultyPool) -> None:
        self.channel = FaultyChannel(pool)
        self.is_released = False
        self._pool = pool
        self.grant = LeaseGrant(
            endpoint=Endpoint(address=pool.name, public_key="", epoch=pool.process.epoch),
            asker_key=f"{pool.name}-{pool.process.epoch}",
            replica=f"{pool.name}-{pool.process.epoch}",
        )

    async def release(self) -> None:
        self._pool.faults.point(self._pool, "release")
        await asyncio.sleep(0)
        self.is_released = True


class FaultyPool:
    """Leases on the newest process; `fail` ends it and starts the next one, empty."""

    def __init__(
        self,
        name: str,
        make: Callable[[int], Process],
        faults: Faults,
        *,
        num_refusals: float = 2,
        refusal: type[Unavailable] = NoReplica,
    ) -> None:
        self.name = name
        self.faults = faults
        self.leases: list[FaultyLease] = []
        self.num_refusals_left: float = 0
        self._make = make
        self._num_refusals = num_refusals
        self._refusal = refusal
        self.process = make(1)

    async def lease(self, session_id: str, *, timeout_s: float) -> FaultyLease:
        self.faults.point(self, "lease")
        await asyncio.sleep(0)
        if self.num_refusals_left > 0:
            self.num_refusals_left -= 1
            raise self._refusal(f"{self.name} refuses")
        lease = FaultyLease(self)
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
