"""The `Constrainer` over the protocol: one matcher on a leased constraint replica.

The router holds all generated tokens, so a lost replica or child costs a replay on another one.
The same object introduces engines to the replica (`admit`), because only it knows which it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from types import UnionType
from typing import TypeVar, cast

from models.protocol.errors import LinkLost, Unavailable, UnsupportedGrammar
from models.protocol.forced import NOTHING_FORCED, Forced
from models.protocol.grammars import Loosened
from models.protocol.messages import (
    ConstraintReply,
    ConstraintRequest,
    Endpoint,
    Grammar,
    GrammarClose,
    GrammarCommit,
    GrammarCommitted,
    GrammarOpen,
    GrammarReady,
    GrammarRefused,
    GrammarStale,
)
from models.protocol.token_sequence import TokenSequence
from router.limits import SessionLimits
from router.ports import ConstraintLease, ConstraintPool
from router.remote.exchange import Patience, await_answer
from router.remote.losses import PartLosses
from router.remote.recovery import Recovery

_T = TypeVar("_T")
_MAX_REPLAYS = 3  # stale answers to one commit before the replica is given up


class RemoteConstrainer:
    """Implements `ports.Constrainer`.

    Args:
        pool: of constraint replicas.
        session_id, grammar: of the session.
        generated: its text without the prompt, as far as it is committed.
        limits: of waits.
        max_forced: most forced tokens that are wanted with an answer.
    """

    def __init__(
        self,
        pool: ConstraintPool,
        session_id: str,
        grammar: Grammar,
        generated: TokenSequence,
        limits: SessionLimits,
        max_forced: int = 0,
    ) -> None:
        self._pool = pool
        self._session_id = session_id
        self._grammar = grammar
        self._generated = generated
        self._max_forced = max_forced
        self._forced = NOTHING_FORCED  # after the generated tokens, when the lease was got
        self.loosened: Sequence[Loosened] = ()
        self._patience = Patience(limits.token_gap_s, limits.resend_interval_s)
        self._recovery = Recovery("constraint service", limits)
        self._lease: ConstraintLease | None = None
        self._admitted: set[str] = set()
        self._seq = 0
        self._lock = asyncio.Lock()  # one question at a time: answers carry no part numbers

    def tell(self, losses: PartLosses) -> None:
        """Have every loss, and how long a replacement took, noted there."""
        self._recovery.losses = losses

    async def open(self) -> Forced:
        """Lease a replica and compile the grammar there; see `ports.Constrainer.open`.

        Raises:
            UnsupportedGrammar: the grammar is refused; Unavailable: no replica answers.
        """
        async with self._lock:
            await self._recovery.run(self._connect, self._disconnect)
            return self._forced

    async def admit(self, asker_key: str) -> Endpoint:
        """Allow the engine with this key to ask for masks; returns where. Idempotent, cheap.

        Raises:
            Unavailable: no constraint replica was to be had in time; never `LinkLost`, which
                would say that the engine is lost.
        """
        async with self._lock:
            return await self._recovery.run(lambda: self._admit(asker_key), self._disconnect)

    async def commit(self, generated: TokenSequence, tokens: Sequence[int]) -> GrammarCommitted:
        """See `ports.Constrainer.commit`."""
        async with self._lock:
            return await self._recovery.run(
                lambda: self._commit(generated, tokens), self._disconnect
            )

    async def reopen(self) -> Forced:
        """See `ports.Constrainer.reopen`."""
        async with self._lock:
            await self._disconnect()
            await self._recovery.run(self._connect, self._disconnect)
            return self._forced

    async def close(self) -> None:
        """See `ports.Constrainer.close`."""
        await self._disconnect()

    async def _connect(self) -> ConstraintLease:
        """Return a lease with the grammar compiled and every generated token committed."""
        if self._lease is not None:
            return self._lease
        lease = await self._pool.lease(self._session_id, timeout_s=self._recovery.lease_timeout_s())
        # Kept at once: a task that is cancelled twice leaves it to `close` to give back.
        self._lease = lease
        self._recovery.losses.note_lease(self._session_id, lease.grant.replica)
        self._admitted.clear()
        try:
            ready = await self._open_on(lease, peers=[])
            num_generated = len(self._generated)
            self._forced = ready.forced if ready.committed_len == num_generated else NOTHING_FORCED
            if ready.committed_len < num_generated:
                self._forced = await self._replay(lease, self._generated, ready.committed_len)
        except BaseException:  # also when cancelled: a lease is kept whole or not at all
            await self._disconnect()
            raise
        return lease

    async def _admit(self, asker_key: str) -> Endpoint:
        lease = await self._connect()
        if asker_key not in self._admitted:
            await self._open_on(lease, peers=[asker_key])
            self._admitted.add(asker_key)
        return lease.grant.endpoint

    async def _commit(self, generated: TokenSequence, tokens: Sequence[int]) -> GrammarCommitted:
        lease = await self._connect()
        for _ in range(_MAX_REPLAYS):
            answer = await self._ask_commit(lease, generated, len(generated), list(tokens))
            if isinstance(answer, GrammarCommitted):
                return answer
            await self._replay(lease, generated, await self._shared_len(lease, generated, answer))
        raise LinkLost(f"matcher stale after {_MAX_REPLAYS} replays", "fault")

    async def _replay(
        self, lease: ConstraintLease, generated: TokenSequence, base_len: int
    ) -> Forced:
        for _ in range(_MAX_REPLAYS):  # a late close may have ended what was just opened
            tokens = generated.ids[base_len:]
            answer = await self._ask_commit(lease, generated, base_len, tokens)
            if isinstance(answer, GrammarStale):
                base_len = await self._shared_len(lease, generated, answer)
            elif answer.num_valid == len(tokens):
                return answer.forced
            else:
                break
        raise LinkLost("the matcher did not take back the committed tokens", "fault")

    async def _shared_len(
        self, lease: ConstraintLease, generated: TokenSequence, answer: GrammarStale
    ) -> int:
        """Return how many tokens the matcher has of ours; a grammar it lacks is opened again."""
        if answer.is_unknown:
            await self._open_on(lease, peers=sorted(self._admitted))
        is_ours = generated.holds(answer.committed_len, answer.committed_hash)
        return answer.committed_len if is_ours else 0

    async def _open_on(self, lease: ConstraintLease, peers: list[str]) -> GrammarReady:
        message = GrammarOpen(
            session_id=self._session_id,
            epoch=lease.grant.endpoint.epoch,
            grammar=self._grammar,
            peers=peers,
            max_forced=self._max_forced,
        )
        answer = await self._ask(lease, message, GrammarReady | GrammarRefused)
        if isinstance(answer, GrammarRefused):
            raise _as_error(answer)
        self.loosened = answer.loosened
        return answer

    async def _ask_commit(
        self, lease: ConstraintLease, generated: TokenSequence, base_len: int, tokens: list[int]
    ) -> GrammarCommitted | GrammarStale:
        self._seq += 1
        message = GrammarCommit(
            session_id=self._session_id,
            epoch=lease.grant.endpoint.epoch,
            seq=self._seq,
            base_len=base_len,
            prefix_hash=generated.hash_at(base_len),
            tokens=tokens,
        )
        answer: GrammarCommitted | GrammarStale | GrammarRefused = await self._ask(
            lease, message, GrammarCommitted | GrammarStale | GrammarRefused, seq=self._seq
        )
        if isinstance(answer, GrammarRefused):  # the grammar broke at these tokens
            raise _as_error(answer)
        return answer

    async def _ask(
        self,
        lease: ConstraintLease,
        message: ConstraintRequest,
        wanted: type[_T] | UnionType,
        seq: int | None = None,
    ) -> _T:
        """Send and wait for a wanted answer.

        An answer that carries a `seq` must carry this one: others are late.
        """

        def take(answer: ConstraintReply) -> _T | None:
            is_wanted = isinstance(answer, wanted) and getattr(answer, "seq", seq) == seq
            return cast(_T, answer) if is_wanted else None

        lease.channel.send(message)
        try:
            return await await_answer(lease.channel, message, take, self._patience)
        except LinkLost as error:
            self._recovery.losses.note(lease.grant.replica, error)
            raise

    async def _disconnect(self) -> None:
        lease = self._lease
        if lease is not None:
            epoch = lease.grant.endpoint.epoch
            lease.channel.send(GrammarClose(session_id=self._session_id, epoch=epoch))
            await lease.release()
            self._lease = None  # only now: a task cancelled before this leaves it for `close`


def _as_error(refused: GrammarRefused) -> UnsupportedGrammar | Unavailable:
    if refused.is_client_error:
        return UnsupportedGrammar(refused.message)
    return Unavailable(refused.message)
