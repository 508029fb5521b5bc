"""One session on one engine: header, answers in order, and what to do when they do not come.

The engine's cache is described by one number, `agreed_len`: how many tokens of the committed log
it is known to hold. Each message names that prefix by length and hash and carries the rest, so a
first message, a normal round, a roll back and a fail-over to an empty replica are all the same.
Nothing here knows what is drafted or verified; `draft_session` and `target_session` do.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from models.errors import ContextTooLong, InternalError, LinkLost, MaskUnavailable
from models.messages import (
    Close,
    Endpoint,
    EngineReply,
    Failed,
    NeedOpen,
    NeedPrefix,
    Open,
    Proposal,
    Propose,
    Sampling,
    Verdict,
    Verify,
)
from models.token_log import TokenLog
from router.ports import EngineLease, EnginePool

_MAX_CORRECTIONS = 8  # NeedOpen and NeedPrefix answers to one exchange before the link is given up


class MaskAccess(Protocol):
    """Who introduces an engine to the constraint replica that holds the session's matcher."""

    async def admit(self, asker_key: str) -> Endpoint:
        """Allow the engine with this key to ask for masks; returns where. Idempotent, cheap."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineLimits:
    """Limits of every wait on an engine, in seconds, and of attempts to replace it."""

    lease_timeout_s: float = 10.0
    first_answer_timeout_s: float = 60.0  # the first answer of a lease includes the prefill
    answer_timeout_s: float = 20.0  # an engine silent for longer counts as dead
    propose_timeout_s: float = 1.0  # a draft later than this is not worth waiting for
    resend_interval_s: float = 2.0
    rejoin_interval_s: float = 0.5
    max_attempts: int = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Opening:
    """What an engine must know of a session before its first message."""

    session_id: str
    sampling: Sampling
    eos_ids: tuple[int, ...]
    prompt_len: int


class Header(NamedTuple):
    """The part that all session messages share, and the committed tokens the engine lacks."""

    session_id: str
    epoch: int
    seq: int
    base_len: int
    prefix_hash: int
    tokens: list[int]


class EngineSession:
    """A session's conversation with whichever replica holds its lease."""

    def __init__(
        self,
        pool: EnginePool,
        opening: Opening,
        limits: EngineLimits,
        masks: MaskAccess | None = None,
    ) -> None:
        self._pool = pool
        self._opening = opening
        self._limits = limits
        self._masks = masks
        self._lease: EngineLease | None = None
        self._opened_for: Endpoint | None = None
        self._is_open = False
        self._has_answered = False
        self._seq = 0
        self.agreed_len = 0

    @property
    def is_connected(self) -> bool:
        """Whether a lease is held."""
        return self._lease is not None

    async def connect(self) -> EngineLease:
        """Hold a lease and have the session open on it.

        Raises:
            Unavailable: no lease within the limit, or no constraint replica.
        """
        if self._lease is None:
            self._lease = await self._pool.lease(
                self._opening.session_id, timeout_s=self._limits.lease_timeout_s
            )
            self._is_open = False
            self._has_answered = False
        lease = self._lease
        endpoint = None
        if self._masks is not None:
            endpoint = await self._masks.admit(lease.grant.asker_key)
        if not self._is_open or endpoint != self._opened_for:
            self._send_open(lease, endpoint)
        return lease

    async def disconnect(self) -> None:
        """Close the session on the replica and give the lease back. Idempotent."""
        lease, self._lease = self._lease, None
        self._is_open = False
        self.agreed_len = 0
        if lease is not None:
            lease.channel.send(
                Close(session_id=self._opening.session_id, epoch=lease.grant.endpoint.epoch)
            )
            await lease.release()

    async def exchange(
        self, committed: TokenLog, build: Callable[[Header], Propose | Verify]
    ) -> AsyncGenerator[Proposal | Verdict, None]:
        """Send one message and yield its answers in order, each exactly once.

        Lost messages are sent again, doubled and late answers dropped, a missing prefix or a
        missing session is sent along. The caller may extend `committed` between answers.

        Raises:
            Unavailable: no lease; LinkLost: the replica is gone or silent beyond the limit;
            MaskUnavailable, ContextTooLong, InternalError: the engine says so.
        """
        lease = await self.connect()
        message = self._build(lease, committed, build)
        lease.channel.send(message)
        parts: dict[int, Verdict] = {}
        next_part = 0
        num_corrections = 0
        while True:
            reply = await self._receive(lease, message, next_part)
            if isinstance(reply, NeedOpen | NeedPrefix):
                num_corrections += 1
                if num_corrections > _MAX_CORRECTIONS:
                    raise LinkLost(f"engine asked {num_corrections} times for session or prefix")
                if next_part > 0:
                    return  # what was yielded stands; the caller's next message corrects
                self._correct(lease, reply, committed)
                message = self._build(lease, committed, build)
                lease.channel.send(message)
                continue
            if isinstance(reply, Failed):
                # Its masks may fail because an `Open` with a newer endpoint was lost: say it again.
                self._is_open = self._is_open and reply.code != "mask_unavailable"
                raise _as_error(reply)
            self._has_answered = True
            if isinstance(reply, Proposal):
                yield reply
                return
            parts[reply.part] = reply
            while next_part in parts:
                verdict = parts.pop(next_part)
                next_part += 1
                yield verdict
                if verdict.is_last:
                    return

    async def _receive(
        self, lease: EngineLease, message: Propose | Verify, next_part: int
    ) -> EngineReply:
        """The next news about `message`, which is sent again at intervals until the limit.

        Late replies and repeats are no news: they extend no wait.
        """
        limits = self._limits
        limit_s = limits.answer_timeout_s if self._has_answered else limits.first_answer_timeout_s
        waited_s = 0.0
        while True:
            interval_s = min(limits.resend_interval_s, limit_s - waited_s)
            try:
                async with asyncio.timeout(interval_s):
                    while True:
                        reply = await lease.channel.receive()
                        if reply.seq == message.seq and _is_news(reply, next_part):
                            return reply
            except TimeoutError:
                waited_s += interval_s
                if waited_s >= limit_s:
                    raise LinkLost(f"no answer within {limit_s:g} s") from None
                lease.channel.send(message)

    def _build(
        self,
        lease: EngineLease,
        committed: TokenLog,
        build: Callable[[Header], Propose | Verify],
    ) -> Propose | Verify:
        self._seq += 1
        base_len = min(self.agreed_len, len(committed) - 1)
        return build(
            Header(
                self._opening.session_id,
                lease.grant.endpoint.epoch,
                self._seq,
                base_len,
                committed.hash_at(base_len),
                committed.ids[base_len:],
            )
        )

    def _correct(
        self, lease: EngineLease, reply: NeedOpen | NeedPrefix, committed: TokenLog
    ) -> None:
        if isinstance(reply, NeedOpen):
            self._send_open(lease, self._opened_for)
            return
        is_ours = (
            reply.have_len < len(committed) and committed.hash_at(reply.have_len) == reply.have_hash
        )
        self.agreed_len = reply.have_len if is_ours else 0

    def _send_open(self, lease: EngineLease, endpoint: Endpoint | None) -> None:
        opening = self._opening
        lease.channel.send(
            Open(
                session_id=opening.session_id,
                epoch=lease.grant.endpoint.epoch,
                sampling=opening.sampling,
                eos_ids=list(opening.eos_ids),
                prompt_len=opening.prompt_len,
                constraint=endpoint,
            )
        )
        self._opened_for = endpoint
        self._is_open = True
        self.agreed_len = 0


def _is_news(reply: EngineReply, next_part: int) -> bool:
    return not isinstance(reply, Verdict) or reply.part >= next_part


def _as_error(reply: Failed) -> Exception:
    match reply.code:
        case "context_too_long":
            return ContextTooLong(reply.message)
        case "mask_unavailable":
            return MaskUnavailable(reply.message)
        case _:
            return InternalError(f"engine failed ({reply.code}): {reply.message}")
