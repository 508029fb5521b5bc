"""Links that lose, double and delay messages and break, between the router and all it asks.

A message's fate is the simulator's (`loadtest.fuzz.failures`); the engines behind are real.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from functools import partial
from typing import Any

from deployments.link.mailbox import Mailbox
from loadtest.fuzz.failures.network import FaultRates, Network
from models.protocol.errors import LinkLost
from router.limits import SessionLimits
from router.types import GenerationRequest
from tests.harness.local import LocalService

_BREAK_SHARE = 0.3
_LAST_BREAK = 40  # messages after which a link that breaks has broken


class _LossyChannel:
    def __init__(self, inner: Any, name: str, network: Network) -> None:
        self._inner, self._name, self._network = inner, name, network
        self._kind = "constraint" if name == "constraint" else "engine"
        self._mailbox: Mailbox[Any] = Mailbox()
        is_broken = network.happens("broken", _BREAK_SHARE)
        self._num_left = network.rng.randint(1, _LAST_BREAK) if is_broken else -1
        self._pump = asyncio.create_task(self._receive())

    def send(self, message: Any) -> None:
        self._carry("request", message, self._deliver)

    async def receive(self) -> Any:
        return await self._mailbox.get()

    def peek(self) -> Any:
        return self._mailbox.peek()

    async def close(self) -> None:
        self._mailbox.mark_lost("the lease was released")
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)

    def _carry(self, way: str, message: Any, deliver: Any) -> None:
        self._num_left -= 1
        if self._num_left == 0:
            self._mailbox.mark_lost("the link broke")
        self._network.carry(self._name, f"{self._kind} {way}", message, deliver)

    def _deliver(self, message: Any) -> None:
        if not self._mailbox.is_lost:
            self._inner.send(message)

    async def _receive(self) -> None:
        try:
            while True:
                self._carry("reply", await self._inner.receive(), self._mailbox.put)
        except LinkLost as error:
            self._mailbox.mark_lost(error.message)


class _LossyLease:
    def __init__(self, inner: Any, name: str, network: Network) -> None:
        self._inner, self.grant = inner, inner.grant
        self.channel = _LossyChannel(inner.channel, name, network)

    async def release(self) -> None:
        await self.channel.close()
        await self._inner.release()


class _LossyPool:
    def __init__(self, name: str, inner: Any, network: Network) -> None:
        self._inner, self._name, self._network = inner, name, network

    async def lease(self, session_id: str, *, timeout_s: float) -> Any:
        inner = await self._inner.lease(session_id, timeout_s=timeout_s)
        return _LossyLease(inner, self._name, self._network)


Serving = Callable[..., AbstractAsyncContextManager[LocalService]]  # by options of `local_service`


async def check_texts_survive(serving: Serving, asked: Sequence[GenerationRequest]) -> None:
    """Check that texts are the same over links with faults of each kind; all of them happen."""

    async def texts(**options: Any) -> list[list[int]]:
        async with serving(**options) as service:
            answers = await asyncio.gather(*(service.generate(one) for one in asked))
            assert await service.freed()
        return [ids for ids, _, _ in answers]

    limits = SessionLimits(
        resend_interval_s=0.05, rejoin_interval_s=0.01, max_losses=60, token_gap_s=10.0
    )
    network = Network(random.Random(7), FaultRates(lose=0.05, double=0.1, delay=0.1))
    expected = await texts()
    # Every message goes through its codec.
    assert await texts(link_to=partial(_LossyPool, network=network), limits=limits) == expected
    assert all(network.counts[what] for what in ("lost", "doubled", "broken"))
