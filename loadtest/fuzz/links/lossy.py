"""Links that lose, double, delay and break, around real pools and mask sources.

Every message goes through the links' own codec. The fate of message number i of a channel is a
function of the case's seed and the channel's name. So it does not depend on the other channels. The
interleaving of messages of several channels depends on the machine.
"""

from __future__ import annotations

import asyncio
import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, TypeVar

from deployments.link.frames import FrameCodec
from deployments.link.mailbox import Mailbox
from models.grammar.masks import MaskSource
from models.protocol.errors import LinkLost, Unavailable
from models.protocol.messages import (
    Endpoint,
    GrammarClose,
    LeaseGrant,
    MaskMiss,
    MaskRequest,
    Masks,
)
from router.ports import Lease, Pool

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Message = TypeVar("Message")

_MAX_DELAY_S = 0.03
_MAX_DELAY_POLLS = 4
_LAST_BREAK = 40  # messages after which a link that breaks has broken


@dataclass(frozen=True, slots=True)
class FaultRates:
    """Shares of messages and leases, 0 to 1."""

    lose: float = 0.0
    double: float = 0.0
    delay: float = 0.0
    break_: float = 0.0  # share of leases whose link breaks within some messages
    refuse: float = 0.0  # share of leases that are not granted

    @classmethod
    def drawn(cls, rng: random.Random) -> FaultRates:
        """Rates under which requests still end."""
        return cls(
            lose=rng.choice((0.0, 0.02, 0.08)),
            double=rng.choice((0.0, 0.05, 0.2)),
            delay=rng.choice((0.0, 0.05, 0.2)),
            break_=rng.choice((0.0, 0.1, 0.3)),
            refuse=rng.choice((0.0, 0.1)),
        )


class Faults:
    """Decides what happens to messages, and counts it. Safe to use from several threads."""

    def __init__(self, seed: int, rates: FaultRates) -> None:
        self.rates = rates
        self.counts: Counter[str] = Counter()
        self._seed = seed
        self._rngs: dict[str, random.Random] = {}
        self._lock = threading.Lock()

    def rng(self, name: str) -> random.Random:
        """Return the dice of one channel."""
        with self._lock:
            return self._rngs.setdefault(name, random.Random(f"{self._seed}/{name}"))

    def happens(self, name: str, what: str, share: float) -> bool:
        """Return whether a fault strikes the next message of a channel."""
        is_struck = self.rng(name).random() < share
        if is_struck:
            with self._lock:
                self.counts[what] += 1
        return is_struck

    def copies(self, name: str) -> int:
        """Return how often a message arrives."""
        if self.happens(name, "lost", self.rates.lose):
            return 0
        return 2 if self.happens(name, "doubled", self.rates.double) else 1


class LossyChannel(Generic[Request, Reply]):
    """A `router.ports.Channel` over another one."""

    def __init__(
        self, inner: Any, name: str, faults: Faults, codecs: tuple[FrameCodec[Any], FrameCodec[Any]]
    ) -> None:
        self._inner = inner
        self.name = name
        self._faults = faults
        self._requests, self._replies = codecs
        self._mailbox: Mailbox[Reply] = Mailbox()
        self._is_closed = False
        self._until_break = -1
        if faults.happens(name, "broken", faults.rates.break_):
            self._until_break = faults.rng(name).randint(1, _LAST_BREAK)
        self._pump = asyncio.create_task(self._receive(), name=f"lossy {name}")

    def send(self, message: Request) -> None:
        """See `router.ports.Channel.send`."""
        for frame in _frames(self._requests, [message]):
            self._carry("out", partial(self._deliver, frame))

    async def receive(self) -> Reply:
        """See `router.ports.Channel.receive`."""
        return await self._mailbox.get()

    async def close(self) -> None:
        """Close the channel. Messages on their way are lost. Idempotent."""
        self._is_closed = True
        self._mailbox.mark_lost("the lease was released")
        self._pump.cancel()
        await asyncio.gather(self._pump, return_exceptions=True)

    def _carry(self, way: str, deliver: Callable[[], None]) -> None:
        name = f"{self.name}/{way}"
        self._until_break -= 1
        if self._until_break == 0:
            self._mailbox.mark_lost("the link broke")
        for _ in range(self._faults.copies(name)):
            if self._faults.happens(name, "delayed", self._faults.rates.delay):
                delay_s = self._faults.rng(name).uniform(0.0, _MAX_DELAY_S)
                asyncio.get_running_loop().call_later(delay_s, deliver)
            else:
                deliver()

    def _deliver(self, frame: bytes) -> None:
        if not self._is_closed and not self._mailbox.is_lost:
            for message in self._requests.decode(frame):
                self._inner.send(message)

    async def _receive(self) -> None:
        try:
            while True:
                for frame in _frames(self._replies, [await self._inner.receive()]):
                    self._carry("in", partial(self._put, frame))
        except LinkLost as error:
            self._mailbox.mark_lost(error.message)

    def _put(self, frame: bytes) -> None:
        for reply in self._replies.decode(frame):
            self._mailbox.put(reply)


class LossyLease(Generic[Request, Reply]):
    """A `router.ports.Lease` over another one."""

    def __init__(self, inner: Any, channel: LossyChannel[Request, Reply]) -> None:
        self.channel = channel
        self._inner = inner

    @property
    def grant(self) -> LeaseGrant:
        """See `router.ports.Lease`."""
        grant: LeaseGrant = self._inner.grant
        return grant

    async def release(self) -> None:
        """See `router.ports.Lease.release`."""
        await self.channel.close()
        await self._inner.release()


class LossyPool(Generic[Request, Reply]):
    """A `router.ports.Pool` whose links are lossy.

    Args:
        inner: who grants.
        name: of the part, for the dice.
        codecs: of what is sent there, and of what comes back.
        closes_with: the last message of a lease; the constraint replica forgets a session when its
            lease ends, which the pool in this process leaves to the router's own message.
    """

    def __init__(
        self,
        inner: Pool[Request, Reply],
        name: str,
        faults: Faults,
        codecs: tuple[FrameCodec[Any], FrameCodec[Any]],
        closes_with: Callable[[str], Request] | None = None,
    ) -> None:
        self._inner = inner
        self.name = name
        self._faults = faults
        self._codecs = codecs
        self._closes_with = closes_with
        self._num_leases: Counter[str] = Counter()
        self.num_open = 0

    async def lease(self, session_id: str, *, timeout_s: float) -> Lease[Request, Reply]:
        """See `router.ports.Pool.lease`."""
        self._num_leases[session_id] += 1
        number = self._num_leases[session_id]
        name = f"{self.name}/{session_id}/{number}"
        if self._faults.happens(name, "refused", self._faults.rates.refuse):
            raise Unavailable("a random refusal")
        inner = await self._inner.lease(session_id, timeout_s=timeout_s)
        lease = _CountedLease(self, session_id, number, inner)
        self.num_open += 1
        return LossyLease(lease, LossyChannel(inner.channel, name, self._faults, self._codecs))

    def on_release(self, session_id: str, number: int, inner: Lease[Request, Reply]) -> None:
        """Note that a lease ends, and its session too unless there is a newer lease."""
        self.num_open -= 1
        if self._closes_with is not None and self._num_leases[session_id] == number:
            inner.channel.send(self._closes_with(session_id))


class _CountedLease(Generic[Request, Reply]):
    """Tells its pool when it is released."""

    def __init__(
        self,
        pool: LossyPool[Request, Reply],
        session_id: str,
        number: int,
        inner: Lease[Request, Reply],
    ) -> None:
        self.grant = inner.grant
        self._release: Callable[[], None] | None = lambda: pool.on_release(
            session_id, number, inner
        )
        self._inner = inner

    async def release(self) -> None:
        on_release, self._release = self._release, None
        if on_release is not None:
            on_release()
        await self._inner.release()


class LossyMasks:
    """A `models.grammar.masks.MaskSource` over another one; used by one engine's thread."""

    def __init__(self, inner: MaskSource, name: str, faults: Faults) -> None:
        self._inner = inner
        self.name = name
        self._faults = faults
        self._held: list[tuple[int, Masks | MaskMiss]] = []  # (polls still to wait, reply)
        self._requests: FrameCodec[MaskRequest] = FrameCodec(MaskRequest)
        self._replies: FrameCodec[Masks | MaskMiss] = FrameCodec(Masks | MaskMiss)

    def open(self, session_id: str, endpoint: Endpoint) -> None:
        """See `MaskSource.open`."""
        self._inner.open(session_id, endpoint)

    def request(self, requests: Sequence[MaskRequest]) -> None:
        """See `MaskSource.request`."""
        for request in _carried(self._requests, requests):
            copies = self._faults.copies(f"{self.name}/{request.session_id}/out")
            self._inner.request([request] * copies)

    def poll(self, timeout_s: float) -> list[Masks | MaskMiss]:
        """See `MaskSource.poll`."""
        held = [(polls - 1, reply) for polls, reply in self._held]
        ready = [reply for polls, reply in held if polls <= 0]
        self._held = [(polls, reply) for polls, reply in held if polls > 0]
        for reply in _carried(self._replies, self._inner.poll(timeout_s)):
            name = f"{self.name}/{reply.session_id}/in"
            for _ in range(self._faults.copies(name)):
                if self._faults.happens(name, "delayed", self._faults.rates.delay):
                    num_polls = self._faults.rng(name).randint(1, _MAX_DELAY_POLLS)
                    self._held.append((num_polls, reply))
                else:
                    ready.append(reply)
        return ready

    def close(self, session_id: str) -> None:
        """See `MaskSource.close`."""
        self._inner.close(session_id)


def _frames(codec: FrameCodec[Message], messages: Sequence[Message]) -> list[bytes]:
    return codec.encode(messages)


def _carried(codec: FrameCodec[Message], messages: Sequence[Message]) -> list[Message]:
    """Messages as they come out of the frames they went into."""
    return [message for frame in _frames(codec, messages) for message in codec.decode(frame)]


def grammar_close(session_id: str) -> GrammarClose:
    """Return the message that ends a matcher on a constraint pool of epoch 1."""
    return GrammarClose(session_id=session_id, epoch=1)
