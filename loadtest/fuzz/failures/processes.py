"""Processes that may die, stop, be slow, or have the clocks of their nodes jump.

A process hears of nothing but messages and leases. Its turn's work takes virtual time, and what the
turn gives leaves at its end.
"""

from __future__ import annotations

import asyncio
import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from ray.exceptions import ActorDiedError

from deployments.link.leases import LeaseBook, LeaseKey
from loadtest.fuzz.failures.model import MAX_MODEL_LEN
from loadtest.fuzz.failures.network import Network
from models.protocol.messages import Endpoint, LeaseGrant

_POLL_S = 1.0
_LEAST_TURN_S = 1e-4

Sender = Callable[[Any], None]  # takes a reply


class Process(ABC):
    """One life of a replica.

    Args:
        network: of the schedule.
        address: where its link listens; a later life may have the same.
        name: of the replica, each life another.
        epoch: of this life.

    Attributes:
        leases: that it has given.
        metadata: of the replica, as Serve gives it to request routers.
        slowness: factor of all it computes.
        places: leases it holds at most.
        changed_s: when it became full, or got room.
        on_end: is told why it is gone.
    """

    leases: LeaseBook

    def __init__(self, network: Network, address: str, name: str, epoch: int) -> None:
        self.network, self.address, self.name = network, address, name
        self.grant = LeaseGrant(
            endpoint=Endpoint(address=address, public_key=name, epoch=epoch),
            asker_key=name,
            max_model_len=MAX_MODEL_LEN,
            replica=name,
        )
        self.metadata: dict[str, float] = {}
        self.slowness = 1.0
        self.places: float = math.inf
        self.changed_s = network.now()
        self.is_alive = True
        self.answers_leases = False  # while it is stopped
        self.failure = ""  # an exception that is no fault of the schedule
        self.ends: dict[LeaseKey, asyncio.Future[str]] = {}  # of leases; why they ended
        self._skew_s = 0.0
        self._spent_s = 0.0  # of the turn under way
        self._inbox: list[tuple[Sender, Any]] = []
        self._outbox: list[tuple[Sender, Any]] = []  # leaves at the end of the turn
        self._awake = asyncio.Event()
        self._goes_on = asyncio.Event()
        self._goes_on.set()
        self._task = asyncio.create_task(self._run(), name=name)

    # --- what happens to it

    @property
    def is_stopped(self) -> bool:
        """True if it says nothing, for now."""
        return not self._goes_on.is_set()

    def stop(self) -> None:
        """Fall silent until `go_on`."""
        self._goes_on.clear()

    def go_on(self) -> None:
        """Go on after a stop."""
        self._goes_on.set()
        self.changed_s = self.network.now()

    def jump(self, seconds: float) -> None:
        """Have the clock of its node jump ahead."""
        self._skew_s += seconds

    def kill(self) -> None:
        """End it with all that it holds; its leases end."""
        self.is_alive = False
        self._task.cancel()
        self._goes_on.set()  # who waits for its answer sees it
        for end in self.ends.values():
            if not end.done():
                end.set_result("gone")

    async def closed(self) -> None:
        """Kill it and wait for its end."""
        self.kill()
        await asyncio.gather(self._task, return_exceptions=True)

    # --- what others do with it

    def wake(self) -> None:
        """End its wait for messages."""
        self._awake.set()

    def clock(self) -> float:
        """Seconds by the clock of its node; a turn's work has passed when it is over."""
        return self.network.now() + self._skew_s + self._spent_s

    async def answer(self) -> None:
        """Wait until it answers a call of Serve's.

        Raises:
            ActorDiedError: it is gone.
        """
        if not self.answers_leases:
            await self._goes_on.wait()
        if not self.is_alive:
            raise ActorDiedError

    def take(self, sender: Sender, message: Any) -> None:
        """Take a message from the link."""
        if self.is_alive:
            self._inbox.append((sender, message))
            self._awake.set()

    def admit(self, session_id: str) -> LeaseKey:
        """Lease a place."""
        key = (session_id, self.leases.grant(session_id))
        self.ends[key] = asyncio.get_running_loop().create_future()
        if self.num_leases == self.places:
            self.changed_s = self.network.now()
        self._awake.set()
        return key

    def release(self, key: LeaseKey) -> None:
        """End a lease."""
        if self.is_alive:
            self._vacate(key)
            self._release(key)
            self._awake.set()

    def has_ended(self, key: LeaseKey) -> bool:
        """Return whether it has ended a lease itself and has not told its holder yet."""
        return self.is_alive and key in self.leases.ended()

    def allows(self, key: str, endpoint: Endpoint) -> bool:
        """Return whether the owner of this key may connect, who knows this endpoint."""
        return endpoint.public_key == self.name

    # --- turns

    async def _run(self) -> None:
        try:
            while True:
                await self._goes_on.wait()
                self._awake.clear()
                self._turn()
                spent_s, self._spent_s = self._spent_s, 0.0
                if spent_s or self._has_work:
                    # What a turn gives leaves when its time is over, if the process lives then.
                    await asyncio.sleep(max(spent_s, _LEAST_TURN_S))
                    self._answer()
                    continue
                self._answer()
                if not self._end_leases():
                    await self._wait()
        except Exception as error:
            self.failure = f"{self.name} died of {type(error).__name__}: {error}"
            raise

    def _answer(self) -> None:
        outbox, self._outbox = self._outbox, []
        for sender, reply in outbox:
            sender(reply)

    def _release(self, key: LeaseKey) -> None:
        self.leases.release(*key)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(_POLL_S if self.num_leases else None):
                await self._awake.wait()
        except TimeoutError:
            pass

    def _end_leases(self) -> bool:
        """Tell the holders of leases that ended here; return whether there were any."""
        ended = self.leases.ended()
        for key in ended:
            end = self._vacate(key)
            if end is not None and not end.done():
                end.set_result("ended")
        self.leases.acknowledge(ended)
        return bool(ended)

    def _vacate(self, key: LeaseKey) -> asyncio.Future[str] | None:
        if self.num_leases == self.places:
            self.changed_s = self.network.now()
        return self.ends.pop(key, None)

    def lasted_s(self, *, is_full: bool) -> float:
        """Return for how long it has been full, or has had room; 0 if it is not so, or silent."""
        is_so = is_full == (self.num_leases >= self.places) and self.is_alive
        return self.network.now() - self.changed_s if is_so and not self.is_stopped else 0.0

    @property
    def num_leases(self) -> int:
        """Leases that have not ended, as far as it knows."""
        return len(self.ends)

    @property
    @abstractmethod
    def _has_work(self) -> bool: ...

    @abstractmethod
    def _turn(self) -> None: ...

    @abstractmethod
    def left(self) -> list[str]:
        """Return what sessions left here."""
