"""Engines get grammar masks from sources here, and wait for them with tickets.

A `MaskSource` carries mask requests to constraint services and their replies back; it may lose
them. `MaskClient` gives each wait its ticket and asks again when a matcher's committed state has
moved on. It learns that state from every reply. Sources: a link to the constraint service (in
`deployments`), or `LocalMaskSource` over a grammar host in the same process.

Invariant: a wait ends with rows, with a failure, or by `drop`; late replies find no ticket.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from models.protocol.messages import (
    ConstraintReply,
    ConstraintRequest,
    Endpoint,
    MaskMiss,
    MaskRequest,
)
from models.protocol.messages import Masks as MaskRows
from models.protocol.token_sequence import TokenSequence

_MAX_ASKS = 4  # requests for one wait: each stale answer names the place to ask from next


class MaskSource(Protocol):
    """The engine's side of the mask traffic; sessions are those of the constraint service."""

    def open(self, session_id: str, endpoint: Endpoint) -> None:
        """Masks of this session come from `endpoint` now. Idempotent; never blocks."""
        ...

    def request(self, requests: Sequence[MaskRequest]) -> None:
        """Send requests of any sessions, as one frame. Never blocks; a loss may be a miss."""
        ...

    def poll(self, timeout_s: float) -> list[MaskRows | MaskMiss]:
        """Replies that have come; waits up to `timeout_s` for the first, 0: not at all."""
        ...

    def close(self, session_id: str) -> None:
        """Note that this session needs no more masks. Idempotent; never blocks."""
        ...


class GrammarHandler(Protocol):
    """The part of a grammar host that answers constraint requests at once."""

    def handle(self, requests: list[ConstraintRequest]) -> list[ConstraintReply]:
        """Replies to `requests`, in order."""
        ...


class LocalMaskSource:
    """A `MaskSource` over a grammar host in the same process; replies are there at once."""

    def __init__(self, host: GrammarHandler) -> None:
        self._host = host
        self._replies: list[MaskRows | MaskMiss] = []

    def open(self, session_id: str, endpoint: Endpoint) -> None:
        """See `MaskSource.open`: the host's owner opens the grammar there."""

    def request(self, requests: Sequence[MaskRequest]) -> None:
        """See `MaskSource.request`."""
        replies = self._host.handle(list(requests))
        self._replies += [reply for reply in replies if isinstance(reply, MaskRows | MaskMiss)]

    def poll(self, timeout_s: float) -> list[MaskRows | MaskMiss]:
        """See `MaskSource.poll`."""
        replies, self._replies = self._replies, []
        return replies

    def close(self, session_id: str) -> None:
        """See `MaskSource.close`."""


class NoMaskSource:
    """A `MaskSource` for engines that serve no constrained sessions: every mask stays missing."""

    def open(self, session_id: str, endpoint: Endpoint) -> None:
        """See `MaskSource.open`."""

    def request(self, requests: Sequence[MaskRequest]) -> None:
        """See `MaskSource.request`."""

    def poll(self, timeout_s: float) -> list[MaskRows | MaskMiss]:
        """See `MaskSource.poll`."""
        return []

    def close(self, session_id: str) -> None:
        """See `MaskSource.close`."""


class Constrained(Protocol):
    """The part of a session that `MaskClient` needs."""

    @property
    def session_id(self) -> str:
        """Its id."""
        ...

    generated: TokenSequence
    mask_base_len: int


@dataclass(slots=True, eq=False)
class MaskWait:
    """Masks for the last `num_rows` states of a session's generated tokens."""

    session: Constrained
    epoch: int  # the constraint service's
    num_rows: int
    ticket: int = 0
    num_asks: int = 0
    rows: list[memoryview] | None = None  # once there; fewer than num_rows after an illegal token
    failure: str = ""  # why there will be none


class MaskClient:
    """Tickets of all waits of one engine."""

    def __init__(self, source: MaskSource) -> None:
        self._source = source
        self._waits: dict[int, MaskWait] = {}
        self._outgoing: list[MaskRequest] = []
        self._num_tickets = 0
        self._matchers: dict[str, str] = {}  # by session id; several may share one

    def open(self, session_id: str, endpoint: Endpoint, matcher: str = "") -> None:
        """Masks of this session come from `endpoint` now, and there from the matcher of that id.

        It is the session's own by default. Another's is committed what the texts have in common.
        """
        matcher = matcher or session_id
        if self._matchers.get(session_id, matcher) != matcher:
            self.close(session_id)
        self._matchers[session_id] = matcher
        self._source.open(matcher, endpoint)

    def close(self, session_id: str) -> None:
        """Note that the session is gone; its waits have been dropped. Idempotent."""
        matcher = self._matchers.pop(session_id, None)
        if matcher is not None and matcher not in self._matchers.values():
            self._source.close(matcher)

    def ask(self, session: Constrained, epoch: int, num_rows: int) -> MaskWait:
        """Queue a request for the states after the last num_rows - 1, ..., 0 tokens less."""
        wait = MaskWait(session, epoch, num_rows)
        self._queue(wait)
        return wait

    def flush(self) -> None:
        """Send what was queued as one frame."""
        if self._outgoing:
            requests, self._outgoing = self._outgoing, []
            self._source.request(requests)

    def collect(self, timeout_s: float) -> None:
        """Take the replies that have come and end their waits; ask stale ones again."""
        if not self._waits:
            return
        for reply in self._source.poll(timeout_s):
            wait = self._waits.pop(reply.ticket, None)
            if wait is None or self._matcher(wait.session) != reply.session_id:
                continue
            if isinstance(reply, MaskRows):
                _learn_base(wait.session, reply.committed_len, reply.committed_hash)
                _take_rows(wait, reply)
            else:
                self._missed(wait, reply)
        self.flush()

    def drop(self, wait: MaskWait | None) -> None:
        """Give up a wait. Idempotent."""
        if wait is not None:
            self._waits.pop(wait.ticket, None)

    def _queue(self, wait: MaskWait) -> None:
        session = wait.session
        generated = session.generated
        first_state = len(generated) - wait.num_rows + 1
        base_len = min(session.mask_base_len, first_state)
        self._num_tickets += 1
        wait.ticket = self._num_tickets
        wait.num_asks += 1
        self._waits[wait.ticket] = wait
        self._outgoing.append(
            MaskRequest(
                session_id=self._matcher(session),
                epoch=wait.epoch,
                ticket=wait.ticket,
                base_len=base_len,
                prefix_hash=generated.hash_at(base_len),
                chain=generated.ids[base_len:],
                num_rows=wait.num_rows,
            )
        )

    def _matcher(self, session: Constrained) -> str:
        return self._matchers.get(session.session_id, session.session_id)

    def _missed(self, wait: MaskWait, miss: MaskMiss) -> None:
        """Ask a stale wait again from where the matcher is; everything else is a failure."""
        if miss.reason != "stale":
            wait.failure = f"mask {miss.reason}: {miss.message}".rstrip(": ")
            return
        if not _learn_base(wait.session, miss.committed_len, miss.committed_hash):
            wait.failure = f"the matcher's {miss.committed_len} committed tokens are not ours"
            return
        first_state = len(wait.session.generated) - wait.num_rows + 1
        if miss.committed_len > first_state or wait.num_asks >= _MAX_ASKS:
            wait.failure = f"mask stale after {wait.num_asks} requests"
            return
        self._queue(wait)


def _learn_base(session: Constrained, committed_len: int, committed_hash: int) -> bool:
    """Note where the matcher is, if it holds a prefix of ours."""
    if not session.generated.holds(committed_len, committed_hash):
        return False
    session.mask_base_len = committed_len
    return True


def _take_rows(wait: MaskWait, reply: MaskRows) -> None:
    size = reply.row_bytes
    if len(reply.rows) != reply.num_valid_rows * size or reply.num_valid_rows > wait.num_rows:
        wait.failure = f"{len(reply.rows)} mask bytes are not {reply.num_valid_rows} rows"
    elif reply.num_valid_rows < 1:
        wait.failure = "the committed tokens are outside the grammar"
    else:
        view = memoryview(reply.rows)
        wait.rows = [view[i * size : (i + 1) * size] for i in range(reply.num_valid_rows)]
