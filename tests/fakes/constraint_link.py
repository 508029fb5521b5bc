"""A constraint service that knows no grammars, at the end of a real link."""

from __future__ import annotations

import asyncio
from collections import defaultdict

from deployments.link.server import AsyncLinkServer
from models.protocol.messages import ConstraintRequest, MaskMiss, MaskRequest, Masks


class ScriptedConstraint:
    """An asyncio link server that answers masks for even tickets and misses the odd ones.

    Args:
        is_mute: it says nothing to odd tickets.
    """

    def __init__(self, *, is_mute: bool = False) -> None:
        self._is_mute = is_mute
        self._came: defaultdict[int, asyncio.Event] = defaultdict(asyncio.Event)  # by ticket
        self.server: AsyncLinkServer[ConstraintRequest] = AsyncLinkServer(
            ConstraintRequest, self._on_messages
        )
        self.frames: list[int] = []
        self.server.start()

    def _on_messages(self, peer: bytes, messages: list[ConstraintRequest]) -> None:
        self.frames.append(len(messages))
        for message in messages:
            if not isinstance(message, MaskRequest):
                continue
            self._came[message.ticket].set()
            if message.ticket % 2 and self._is_mute:
                continue
            if message.ticket % 2:
                miss = MaskMiss(
                    session_id=message.session_id, ticket=message.ticket, reason="stale"
                )
                self.server.reply(peer, miss)
            else:
                masks = Masks(
                    session_id=message.session_id,
                    ticket=message.ticket,
                    committed_len=0,
                    committed_hash=0,
                    num_valid_rows=1,
                    row_bytes=4,
                    rows=b"\x01\x02\x03\x04",
                )
                self.server.reply(peer, masks)

    async def has(self, ticket: int, limit_s: float = 30.0) -> None:
        """Wait until a request has come."""
        async with asyncio.timeout(limit_s):
            await self._came[ticket].wait()


def mask_request(session_id: str, ticket: int) -> MaskRequest:
    return MaskRequest(
        session_id=session_id,
        epoch=1,
        ticket=ticket,
        base_len=0,
        prefix_hash=0,
        chain=[5],
        num_rows=2,
    )
