"""Drafts of look-aheads: waited for, where an ordinary session would go on without.

A round without its draft decides otherwise, so a seed's text would depend on how busy the draft
model is. Here a draft model that is late is waited for; one that is lost is not, from then on.
"""

from __future__ import annotations

import asyncio

from models.protocol.errors import MaskUnavailable, Unavailable
from models.protocol.messages import Proposal
from models.protocol.token_sequence import TokenSequence
from router.remote.draft import RemoteDrafter

_MAX_ATTEMPTS = 2  # to get one draft


class PatientDrafter:
    """Asks a draft model.

    Args:
        drafter: over the protocol.
        wait_s: for it to join, or to join again.

    Attributes:
        num_steps: draft steps so far, one for each token.
    """

    def __init__(self, drafter: RemoteDrafter, wait_s: float) -> None:
        self._drafter = drafter
        self._wait_s = wait_s
        self.num_steps = 0

    def start(self) -> None:
        """Have it join, in the background."""
        self._drafter.start()

    async def draft(self, committed: TokenSequence, num_tokens: int) -> Proposal | None:
        """Return a draft of up to `num_tokens`; None if there is none.

        Raises:
            MaskUnavailable: its masks were waited for in vain.
        """
        for _ in range(_MAX_ATTEMPTS):
            if not await self._is_ready():
                return None
            try:
                proposal = await self._drafter.propose(committed, num_tokens)
            except Unavailable:
                continue
            if proposal.cut in ("mask_late", "mask_missing"):  # over once the grammar is reopened
                raise MaskUnavailable(f"the draft model's masks were lost ({proposal.cut})")
            if proposal.cut == "starved":  # no KV blocks: a short draft is another draft
                continue
            self.num_steps += len(proposal.tokens)
            return proposal if proposal.tokens else None
        return None

    async def close(self) -> None:
        """Free the session on the draft model. Idempotent; never raises."""
        await self._drafter.close()

    async def _is_ready(self) -> bool:
        if self._drafter.is_ready or self._drafter.is_over:
            return self._drafter.is_ready
        try:
            async with asyncio.timeout(self._wait_s):
                await asyncio.shield(self._drafter.joined())  # which goes on joining
        except TimeoutError:
            self._wait_s = 0.0
        return self._drafter.is_ready
