"""One session on one engine: headers, answers in order, and what is done when none come.

The engine's cache is described by one number, `agreed_len`: how many committed tokens it is known
to hold. Each message names that prefix by length and hash and carries the rest. So a first message,
a normal round, a rollback and a failover to an empty replica are all the same. Nothing here knows
what is drafted or verified; `draft` and `target` do.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass
from functools import partial

from models.protocol.errors import ContextTooLong, InternalError, LinkLost, MaskUnavailable
from models.protocol.messages import (
    Chosen,
    Close,
    Endpoint,
    EngineQuestion,
    EngineReply,
    Failed,
    NeedOpen,
    NeedPrefix,
    Open,
    Proposal,
    Queued,
    Sampling,
    Verdict,
)
from models.protocol.token_sequence import TokenSequence
from router.limits import SessionLimits
from router.ports import EngineLease, EnginePool
from router.remote.exchange import Patience, await_answer
from router.remote.grammar import RemoteConstrainer
from router.remote.losses import PartLosses

_News = Proposal | Verdict | Chosen | NeedPrefix | NeedOpen | Failed

_MAX_CORRECTIONS = 8  # NeedOpen and NeedPrefix answers to one exchange before the link is given up


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenTemplate:
    """The terms of a session that an engine must know before its first message."""

    session_id: str
    sampling: Sampling
    eos_ids: tuple[int, ...]
    prompt_len: int
    cache_salt: str = ""
    goes_first: bool = False
    is_tentative: bool = False
    max_len: int = 0  # tokens it may come to hold and must have room for; 0: as many as there are
    matcher: str = ""  # the constraint service's session whose masks it gets; "": its own
    adapter: str = ""  # of a target, which drafters know nothing of


# A message without its header: session, epoch, seq, base length and hash, tokens. Those are given
# by name when it is sent.
BuildMessage = Callable[..., EngineQuestion]


class EngineClient:
    """A session's conversation with whichever replica holds its lease."""

    def __init__(
        self,
        pool: EnginePool,
        opening: OpenTemplate,
        limits: SessionLimits,
        masks: RemoteConstrainer | None = None,
        losses: PartLosses | None = None,
    ) -> None:
        self._pool = pool
        self._opening = opening
        resend_s, queue_s = limits.resend_interval_s, limits.queue_timeout_s
        self._first_patience = Patience(limits.first_token_s, resend_s, queue_s)
        self._patience = Patience(limits.token_gap_s, resend_s, queue_s)
        self._masks = masks
        self.losses = PartLosses() if losses is None else losses
        self.replica_name = ""  # of the replica that holds the lease, or held the last one
        self._lease: EngineLease | None = None
        self._opened_for: Endpoint | None = None
        self._is_open = False
        self._has_answered = False
        self._seq = 0
        self._next_part = 0  # of the verdicts on the newest message
        self.agreed_len = 0

    @property
    def is_connected(self) -> bool:
        """True if a lease is held."""
        return self._lease is not None

    @property
    def replica(self) -> str:
        """The replica that holds the lease, by its link's address and epoch; "" for none."""
        if self._lease is None:
            return ""
        endpoint = self._lease.grant.endpoint
        return f"{endpoint.address} {endpoint.epoch}"

    @property
    def max_len(self) -> int:
        """Tokens the replica can hold for one session, by its grant; 0: not known, or no lease."""
        if self._lease is None:
            return 0
        grant = self._lease.grant
        return min((n for n in (grant.max_model_len, grant.kv_cache_tokens) if n > 0), default=0)

    @property
    def has_verdict(self) -> bool:
        """True if the next verdict on the newest message is there already."""
        reply = None if self._lease is None else self._lease.channel.peek()
        if not isinstance(reply, Verdict):
            return False
        return (reply.seq, reply.part) == (self._seq, self._next_part)

    async def connect(self, timeout_s: float) -> None:
        """Hold a lease; the one there is, else a new one.

        Raises:
            Unavailable: no lease within `timeout_s`.
            ContextTooLong: the replica's whole KV cache is too small for the session.
        """
        if self._lease is None:
            self._lease = await self._pool.lease(self._opening.session_id, timeout_s=timeout_s)
            self.replica_name = self._lease.grant.replica
            self.losses.note_lease(self._opening.session_id, self.replica_name)
            self._is_open = False
            self._has_answered = False
            _check_room(self._opening, self._lease.grant.kv_cache_tokens)

    async def disconnect(self) -> None:
        """Close the session on the replica and give the lease back. Idempotent."""
        lease = self._lease
        self._is_open = False
        self.agreed_len = 0
        if lease is not None:
            lease.channel.send(
                Close(session_id=self._opening.session_id, epoch=lease.grant.endpoint.epoch)
            )
            await lease.release()
            self._lease = None  # only now: a task cancelled before this leaves it to be released

    async def exchange(
        self, committed: TokenSequence, build: BuildMessage
    ) -> AsyncGenerator[Proposal | Verdict | Chosen, None]:
        """Send one message and yield its answers in order, each exactly once.

        Lost messages are sent again, doubled and late answers dropped, a missing prefix or a
        missing session is sent along. The caller may extend `committed` between answers.

        Raises:
            LinkLost: there is no lease, or the replica is gone or silent beyond the limit;
            Overloaded: the replica kept the message waiting, with nothing done, beyond the limit;
            MaskUnavailable, ContextTooLong, InternalError: the engine says so;
            Unavailable: the constraint replica is lost for good, which says nothing of this one.
        """
        lease = await self._opened()
        message = self._build(lease, committed, build)
        lease.channel.send(message)
        parts: dict[int, Verdict] = {}
        self._next_part = next_part = 0
        num_corrections = 0
        while True:
            reply = await self._receive(lease, message, next_part)
            if isinstance(reply, NeedOpen | NeedPrefix):
                num_corrections += 1
                if num_corrections > _MAX_CORRECTIONS:
                    # Who asks for a session that was sent each time has ended its lease.
                    raise LinkLost(
                        f"engine asked {num_corrections} times for session or prefix",
                        "ended" if isinstance(reply, NeedOpen) else "fault",
                    )
                if next_part > 0:
                    return  # the yielded parts are valid; the caller's next message corrects
                self._correct(lease, reply, committed)
                message = self._build(lease, committed, build)
                lease.channel.send(message)
                continue
            if isinstance(reply, Failed):
                # Its masks may fail because an `Open` with a newer endpoint was lost: say it again.
                self._is_open = self._is_open and reply.code != "mask_unavailable"
                raise _as_error(reply)
            self._has_answered = True
            if isinstance(reply, Proposal | Chosen):
                yield reply
                return
            parts[reply.part] = reply
            while next_part in parts:
                verdict = parts.pop(next_part)
                self._next_part = next_part = next_part + 1
                yield verdict
                if verdict.is_last:
                    return

    async def _opened(self) -> EngineLease:
        """Return the lease, with the session open on it and its masks to be had."""
        lease = self._lease
        if lease is None:
            raise LinkLost("no lease is held", "fault")
        endpoint = None
        if self._masks is not None:
            endpoint = await self._masks.admit(lease.grant.asker_key)
        if not self._is_open or endpoint != self._opened_for:
            self._send_open(lease, endpoint)
        return lease

    async def _receive(self, lease: EngineLease, message: EngineQuestion, next_part: int) -> _News:
        """Wait for the next news about `message`."""
        try:
            reply: _News = await await_answer(
                lease.channel,
                message,
                partial(_news, message.seq, next_part),
                self._patience if self._has_answered else self._first_patience,
                progress=partial(_progress, message.seq),
            )
            if isinstance(reply, NeedOpen) and reply.epoch != lease.grant.endpoint.epoch:
                raise LinkLost("the engine has started anew", "gone")
        except LinkLost as error:
            self.losses.note(self.replica_name, error)
            raise
        return reply

    def _build(
        self, lease: EngineLease, committed: TokenSequence, build: BuildMessage
    ) -> EngineQuestion:
        self._seq += 1
        base_len = min(self.agreed_len, len(committed) - 1)
        return build(
            session_id=self._opening.session_id,
            epoch=lease.grant.endpoint.epoch,
            seq=self._seq,
            base_len=base_len,
            prefix_hash=committed.hash_at(base_len),
            tokens=committed.ids[base_len:],
        )

    def _correct(
        self, lease: EngineLease, reply: NeedOpen | NeedPrefix, committed: TokenSequence
    ) -> None:
        if isinstance(reply, NeedOpen):
            self._send_open(lease, self._opened_for)
            return
        is_ours = reply.have_len < len(committed) and committed.holds(
            reply.have_len, reply.have_hash
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
                cache_salt=opening.cache_salt,
                goes_first=opening.goes_first,
                matcher=opening.matcher,
                is_tentative=opening.is_tentative,
                adapter=opening.adapter,
            )
        )
        self._opened_for = endpoint
        self._is_open = True
        self.agreed_len = 0


def _news(seq: int, next_part: int, reply: EngineReply) -> _News | None:
    """Return the reply if it answers message `seq` and is not a part that was there before."""
    if isinstance(reply, Queued) or reply.seq != seq:
        return None
    is_old = isinstance(reply, Verdict) and reply.part < next_part
    return None if is_old else reply


def _progress(seq: int, reply: EngineReply) -> int | None:
    """Return the rows computed for message `seq`, if the reply says that it is not forgotten."""
    return reply.num_rows_done if isinstance(reply, Queued) and reply.seq == seq else None


def _check_room(opening: OpenTemplate, kv_cache_tokens: int) -> None:
    """Refuse now what would fail when the cache is full, after the text has begun."""
    if 0 < kv_cache_tokens < opening.max_len:
        max_tokens = opening.max_len - opening.prompt_len
        raise ContextTooLong(
            f"max_tokens: the model's KV cache holds {kv_cache_tokens} tokens, but the prompt has "
            f"{opening.prompt_len} and max_tokens is {max_tokens}; shorten the prompt or ask for "
            "fewer tokens",
            param="max_tokens" if opening.prompt_len < kv_cache_tokens else "prompt",
        )


def _as_error(reply: Failed) -> Exception:
    match reply.code:
        case "context_too_long":
            return ContextTooLong(reply.message)
        case "mask_unavailable":
            return MaskUnavailable(reply.message)
        case _:
            return InternalError(f"engine failed ({reply.code}): {reply.message}")
