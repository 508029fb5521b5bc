"""A session's bounded queue of replies in an event loop, its channel, and a lease that holds one.

Every `Channel` here needs such a queue. When its reader does not keep up the oldest reply is
dropped, as a lossy link would. The protocol asks again. Marking it lost wakes the reader at once.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

from models.protocol.errors import LinkLost, LossReason
from models.protocol.messages import LeaseGrant

Request = TypeVar("Request")
Reply = TypeVar("Reply")
Channel = TypeVar("Channel")

_MAX_UNREAD_REPLIES = 1024  # per session; run_on streams at most a few hundred ahead


class Mailbox(Generic[Reply]):
    """A bounded queue of one session's replies, in the event loop; losing it wakes the reader."""

    def __init__(self, max_unread: int = _MAX_UNREAD_REPLIES) -> None:
        self._replies: deque[Reply] = deque(maxlen=max_unread)
        self._waiter: asyncio.Future[None] | None = None
        self._lost: tuple[str, LossReason] | None = None

    def put(self, reply: Reply) -> None:
        """Add a reply; drops the oldest one when full."""
        self._replies.append(reply)
        self._wake()

    def mark_lost(self, message: str, reason: LossReason = "gone") -> None:
        """Make `get` raise `LinkLost` from now on. Idempotent."""
        if self._lost is None:
            self._lost = message, reason
        self._wake()

    async def get(self) -> Reply:
        """Return the next reply.

        Raises:
            LinkLost: the mailbox was marked lost, also while waiting.
        """
        while True:
            if self._lost is not None:
                raise LinkLost(*self._lost)
            if self._replies:
                return self._replies.popleft()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None

    def peek(self) -> Reply | None:
        """Return the reply that `get` would return at once; None if it would wait or raise."""
        return self._replies[0] if self._replies and self._lost is None else None

    @property
    def is_lost(self) -> bool:
        """True if `mark_lost` was called."""
        return self._lost is not None

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


class MailboxChannel(Generic[Request, Reply]):
    """Implements `router.ports.Channel`; whoever has its replies puts them into the mailbox.

    Args:
        forward: takes the session's messages on their way.
    """

    def __init__(self, forward: Callable[[Request], None]) -> None:
        self.mailbox: Mailbox[Reply] = Mailbox()
        self._forward = forward

    def send(self, message: Request) -> None:
        """See `router.ports.Channel.send`."""
        if not self.mailbox.is_lost:
            self._forward(message)

    async def receive(self) -> Reply:
        """See `router.ports.Channel.receive`."""
        return await self.mailbox.get()

    def peek(self) -> Reply | None:
        """See `router.ports.Channel.peek`."""
        return self.mailbox.peek()


class HeldLease(Generic[Channel]):
    """Implements `router.ports.Lease`.

    Args:
        grant: of the replica.
        channel: to it.
        end: gives the lease back; called once.
    """

    def __init__(self, grant: LeaseGrant, channel: Channel, end: Callable[[], None]) -> None:
        self.grant = grant
        self.channel = channel
        self._end: Callable[[], None] | None = end

    async def release(self) -> None:
        """See `router.ports.Lease.release`."""
        end, self._end = self._end, None
        if end is not None:
            end()
