"""The grammar session over a scripted constraint replica: what it makes of odd answers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import msgspec
import pytest

from models.protocol.errors import UnsupportedGrammar
from models.protocol.forced import NOTHING_FORCED, Forced
from models.protocol.messages import (
    ConstraintReply,
    ConstraintRequest,
    Endpoint,
    Grammar,
    GrammarCommit,
    GrammarCommitted,
    GrammarOpen,
    GrammarReady,
    GrammarRefused,
    GrammarStale,
    LeaseGrant,
)
from models.protocol.token_sequence import TokenSequence
from router.limits import SessionLimits
from router.remote.grammar import RemoteConstrainer
from router.remote.losses import Losses

LIMITS = SessionLimits(token_gap_s=0.2, resend_interval_s=0.02, rejoin_interval_s=0.001)
Script = Callable[[ConstraintRequest], list[ConstraintReply]]


class ScriptedReplica:
    """Pool, lease and channel in one: answers each message by `script`."""

    def __init__(self, script: Script) -> None:
        endpoint = Endpoint(address="scripted", public_key="", epoch=1)
        self.grant = LeaseGrant(endpoint=endpoint, replica="grammar-1")
        self.sent: list[ConstraintRequest] = []
        self._script = script
        self._inbox: asyncio.Queue[ConstraintReply] = asyncio.Queue()

    @property
    def channel(self) -> ScriptedReplica:
        return self

    async def lease(self, session_id: str, *, timeout_s: float) -> ScriptedReplica:
        return self

    async def release(self) -> None:
        pass

    def send(self, message: ConstraintRequest) -> None:
        self.sent.append(message)
        for reply in self._script(message):
            self._inbox.put_nowait(reply)

    async def receive(self) -> ConstraintReply:
        return await self._inbox.get()

    def peek(self) -> None:
        """Nothing is read ahead."""


def session_on(
    replica: ScriptedReplica, *written: int, **terms: int
) -> tuple[RemoteConstrainer, TokenSequence]:
    generated = TokenSequence(written)
    grammar = Grammar(kind="json_schema", text="{}")
    return RemoteConstrainer(replica, "s", grammar, generated, LIMITS, **terms), generated


def accept(message: ConstraintRequest) -> list[ConstraintReply]:
    if isinstance(message, GrammarOpen):
        return [GrammarReady(session_id="s", compile_ms=0.0, committed_len=0)]
    if isinstance(message, GrammarCommit):
        return [
            GrammarCommitted(
                session_id="s",
                seq=message.seq,
                num_valid=len(message.tokens),
                is_complete=False,
            )
        ]
    return []


async def test_a_grammar_that_breaks_within_a_commit_is_refused_at_once() -> None:
    def script(message: ConstraintRequest) -> list[ConstraintReply]:
        if isinstance(message, GrammarCommit):
            return [GrammarRefused(session_id="s", message="too complex", is_client_error=True)]
        return accept(message)

    replica = ScriptedReplica(script)
    session, generated = session_on(replica)
    with pytest.raises(UnsupportedGrammar, match="too complex"):
        await session.commit(generated, [1])
    assert sum(isinstance(message, GrammarCommit) for message in replica.sent) == 1


async def test_a_refusal_that_is_not_the_clients_fault_is_tried_again() -> None:
    refusals = iter([True, False])

    def script(message: ConstraintRequest) -> list[ConstraintReply]:
        if isinstance(message, GrammarOpen) and next(refusals, False):
            return [GrammarRefused(session_id="s", message="full", is_client_error=False)]
        return accept(message)

    losses = Losses()
    serving = losses.follow("s")
    session, generated = session_on(ScriptedReplica(script))
    session.tell(losses.constraint)
    assert (await session.commit(generated, [1])).num_valid == 1
    assert serving == {"constraint": "grammar-1"}


async def test_one_doubled_answer_does_not_double_all_later_commits() -> None:
    commits: list[int] = []

    def script(message: ConstraintRequest) -> list[ConstraintReply]:
        replies = accept(message)
        if isinstance(message, GrammarCommit):
            commits.append(message.seq)
            return replies * 2 if len(commits) == 1 else replies
        return replies

    session, generated = session_on(ScriptedReplica(script))
    for token in range(5):
        await session.commit(generated, [token])
        generated.extend([token])
    assert commits == [1, 2, 3, 4, 5]


async def test_a_late_close_of_an_earlier_lease_costs_no_replica() -> None:
    """It ends the grammar that was just opened again, before its tokens are replayed."""
    is_closed = True

    def script(message: ConstraintRequest) -> list[ConstraintReply]:
        nonlocal is_closed
        if isinstance(message, GrammarCommit) and is_closed:
            is_closed = False
            return [GrammarStale(session_id="s", seq=message.seq, is_unknown=True)]
        return accept(message)

    replica = ScriptedReplica(script)
    session, generated = session_on(replica, 7, 8)
    assert (await session.commit(generated, [9])).num_valid == 1
    kinds = [type(message).__name__ for message in replica.sent]
    assert kinds == ["GrammarOpen", "GrammarCommit"] * 2 + ["GrammarCommit"], "and no close"


class SlowToRelease(ScriptedReplica):
    """Takes a while to take its lease back, and counts leases that are out."""

    def __init__(self) -> None:
        super().__init__(lambda message: [])  # and never answers
        self.num_open = 0

    async def lease(self, session_id: str, *, timeout_s: float) -> ScriptedReplica:
        self.num_open += 1
        return self

    async def release(self) -> None:
        await asyncio.sleep(0.01)
        self.num_open = 0


async def test_a_lease_outlives_no_session_that_is_cancelled_twice() -> None:
    replica = SlowToRelease()
    session, _ = session_on(replica)
    opening = asyncio.create_task(session.open())
    await asyncio.sleep(0.001)
    for _ in range(2):  # the second while the lease is given back for the first
        opening.cancel()
        await asyncio.sleep(0)
    await asyncio.gather(opening, return_exceptions=True)
    await session.close()
    assert replica.num_open == 0


def forcing(committed_len: int) -> Script:
    """A replica that is open at `committed_len` and forces the length of what it holds."""

    def script(message: ConstraintRequest) -> list[ConstraintReply]:
        changes: dict[str, object] = {}
        if isinstance(message, GrammarOpen):
            forced = Forced([committed_len] * message.max_forced, 1)
            changes = {"committed_len": committed_len, "forced": forced}
        if isinstance(message, GrammarCommit):
            changes = {"forced": Forced([message.base_len + len(message.tokens)], 1)}
        return [msgspec.structs.replace(reply, **changes) for reply in accept(message)]

    return script


@pytest.mark.parametrize(
    ("committed_len", "forced"),
    [(0, Forced([3], 1)), (3, Forced([3, 3], 1)), (5, NOTHING_FORCED)],
    ids=["replayed", "there", "ahead"],
)
async def test_what_is_forced_is_known_from_the_first_answer_on(
    committed_len: int, forced: Forced
) -> None:
    """Also after a replay; what a matcher forces that is ahead is not forced here."""
    replica = ScriptedReplica(forcing(committed_len))
    session, generated = session_on(replica, 7, 8, 9, max_forced=2)
    assert await session.open() == forced
    assert await session.reopen() == forced
    assert (await session.commit(generated, [1, 2])).forced == Forced([5], 1)
