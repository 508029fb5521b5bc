"""A model leased from inside its own replica: for replays, beside the leases of routers.

The same link as a router's, so that what is measured is what routers get. Knows neither Ray nor
what is asked.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

from deployments.link.client import LinkChannel, LinkClient
from deployments.link.mailbox import HeldLease
from models.protocol.errors import Unavailable
from models.protocol.messages import EngineReply, LeaseGrant, LeaseRequest
from router.ports import EngineLease

Admit = Callable[[LeaseRequest], Awaitable[Callable[[], None]]]


class OwnPool:
    """Implements `router.ports.Pool` over one model.

    Args:
        grant: of the model's leader.
        admit: leases a place to a session, and gives what ends that.
        links: of this process.
        refusals: what `admit` raises where the model is gone.
    """

    def __init__(
        self,
        grant: LeaseGrant,
        admit: Admit,
        links: LinkClient,
        refusals: tuple[type[Exception], ...],
    ) -> None:
        self._grant = grant
        self._admit = admit
        self._links = links
        self._refusals: tuple[type[Exception], ...] = (TimeoutError, *refusals)

    async def lease(self, session_id: str, *, timeout_s: float) -> EngineLease:
        """See `router.ports.Pool.lease`."""
        request = LeaseRequest(session_id=session_id, public_key=self._links.public_key)
        try:
            async with asyncio.timeout(timeout_s):
                release = await self._admit(request)
        except self._refusals as error:
            raise Unavailable(f"the model grants no lease: {error}") from None
        channel: LinkChannel[Any, Any] = self._links.channel(
            self._grant.endpoint, session_id, EngineReply
        )

        def end() -> None:
            channel.close()
            release()

        return HeldLease(self._grant, channel, end)
