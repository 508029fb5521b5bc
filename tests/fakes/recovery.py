"""Replicas that crash or fall silent at a chosen point: any send, receive, lease or release.

Three pools share one count of such points, so that a test can go through all of them. A replica
that is gone is replaced by an empty one, which is granted after a few refusals, as a process that
starts. The engines judge `language` and ask for masks as real ones do: from the constraint
replica their `Open` named, if that is alive and has been told of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, Protocol

from models.protocol.errors import LinkLost, Unavailable
from models.protocol.messages import (
    Endpoint,
    EngineQuestion,
    EngineReply,
    EngineRequest,
    Failed,
    GrammarClose,
    GrammarCommit,
    GrammarCommitted,
    GrammarOpen,
    GrammarReady,
    GrammarStale,
    LeaseGrant,
    Open,
    Proposal,
    Propose,
)
from models.protocol.token_sequence import TokenSequence
from tests.fakes.router import TIMING, ScriptedEngine, continuation

Fault = Literal["crash", "stop"]


class Faults:
    """Counts the points of `pools` (empty: all); at those in `at` fails the pool or `victim`."""

    def __init__(
        self, at: Collection[int] = (), kind: Fault = "crash", pools: Sequence[str] = ()
    ) -> None:
        self._at = at
        self._kind: Fault = kind
        self._pools = pools
        self.victim: FaultyPool | None = None
        self.names: list[str] = []  # "pool.operation" of each point passed
        self.num_struck = 0

    def point(self, pool: FaultyPool, operation: str) -> None:
        if self._pools and pool.name not in self._pools:
            return
        number = len(self.names)
        self.names.append(f"{pool.name}.{operation}")
        if number in self._at:
            self.num_struck += 1
            (self.victim or pool).fail(self._kind)


class Process(Protocol):
    epoch: int

    def handle(self, message: Any) -> list[Any]: ...


class FaultyChannel:
    def __init__(self, pool: FaultyPool) -> None:
        self._pool = pool
        self._process = pool.process
        self._inbox: asyncio.Queue[Any] = asyncio.Queue()
        self._is_lost = False

    def send(self, message: Any) -> None:
        self._point("send")
        if self._process is self._pool.process:
            for reply in self._process.handle(message):
                self._inbox.put_nowait(reply)

    async def receive(self) -> Any:
        self._point("receive")
        reply = None if self._is_lost else await self._inbox.get()
        if reply is None:
            raise LinkLost(f"{self._pool.name} crashed")
        return reply

    def lose(self) -> None:
        self._is_lost = True
        self._inbox.put_nowait(None)

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
    ) -> None:
        self.name = name
        self.faults = faults
        self.leases: list[FaultyLease] = []
        self.num_refusals_left: float = 0
        self._make = make
        self._num_refusals = num_refusals
        self.process = make(1)

    async def lease(self, session_id: str, *, timeout_s: float) -> FaultyLease:
        self.faults.point(self, "lease")
        await asyncio.sleep(0)
        if self.num_refusals_left > 0:
            self.num_refusals_left -= 1
            raise Unavailable(f"{self.name} is starting")
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


class ScriptedMatchers:
    """A constraint process that allows exactly the continuation of one prompt."""

    def __init__(self, epoch: int, prompt: Sequence[int], num_tokens: int) -> None:
        self.epoch = epoch
        self.peers: set[str] = set()
        self._allowed = continuation(prompt, num_tokens)
        self._logs: dict[str, TokenSequence] = {}

    def handle(self, message: Any) -> list[Any]:
        session_id = message.session_id
        if isinstance(message, GrammarClose):
            self._logs.pop(session_id, None)
            return []
        if isinstance(message, GrammarOpen):
            log = self._logs.setdefault(session_id, TokenSequence())
            self.peers |= set(message.peers)
            return [GrammarReady(session_id=session_id, compile_ms=0.0, committed_len=len(log))]
        assert isinstance(message, GrammarCommit)
        return [self._commit(message)]

    def _commit(self, message: GrammarCommit) -> GrammarCommitted | GrammarStale:
        log = self._logs.get(message.session_id)
        if log is None or message.epoch != self.epoch:
            return GrammarStale(session_id="s", seq=message.seq, is_unknown=True)
        base_len = message.base_len
        if base_len > len(log) or log.hash_at(base_len) != message.prefix_hash:
            return GrammarStale(session_id="s", seq=message.seq)
        log.truncate(base_len)
        allowed = self._allowed[base_len : base_len + len(message.tokens)]
        num_valid = len(message.tokens) if message.tokens == allowed else 0
        log.extend(message.tokens[:num_valid])
        return GrammarCommitted(
            session_id="s", seq=message.seq, num_valid=num_valid, is_complete=False
        )


class MaskedEngine(ScriptedEngine):
    """Drafts and verifies, for a constrained session only with masks from a live replica."""

    def __init__(self, name: str, epoch: int, constraint: Callable[[], ScriptedMatchers]) -> None:
        super().__init__(epoch)
        self._key = f"{name}-{epoch}"
        self._constraint = constraint
        self._terms: dict[str, Open] = {}

    def handle(self, message: EngineRequest) -> list[EngineReply]:
        if isinstance(message, Open) and message.epoch == self.epoch:
            self._terms[message.session_id] = message
        return super().handle(message)

    def _act(self, log: TokenSequence, message: EngineQuestion) -> list[EngineReply]:
        endpoint = self._terms[message.session_id].constraint
        replies = super()._act(log, message)
        if endpoint is None or self._has_masks(endpoint):
            return replies
        session_id, seq = message.session_id, message.seq
        if isinstance(message, Propose):
            return [
                Proposal(
                    session_id=session_id,
                    seq=seq,
                    tokens=[],
                    timing=TIMING,
                    step_ms=0.1,
                    cut="mask_missing",
                )
            ]
        return [Failed(session_id=session_id, seq=seq, code="mask_unavailable", message="none")]

    def _has_masks(self, endpoint: Endpoint) -> bool:
        process = self._constraint()
        return endpoint.epoch == process.epoch and self._key in process.peers
