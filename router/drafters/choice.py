"""Who drafts for a session: what the request asks for, else the deployment, else what there is.

With a draft model chosen, prompt lookup fills in while the draft model is not there (prefilling,
lost, rejoining, without room, outgrown by the text). Which of them drafts a round is visible as
`source`, because acceptance and cost are estimated for each of them apart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from models.protocol.errors import InvalidRequest, Unavailable
from models.protocol.messages import DraftSource, Proposal
from models.protocol.token_sequence import TokenSequence
from router.limits import SpeculationLimits
from router.ports import Drafter
from router.types import SpeculationSettings


def choose_source(
    wanted: SpeculationSettings, allowed: SpeculationLimits, *, has_draft_model: bool
) -> DraftSource | None:
    """Who is to draft; None: nobody, the session runs k = 0.

    Raises:
        InvalidRequest: the request names a drafter that this deployment has not.
    """
    _check(wanted.drafter, allowed, has_draft_model=has_draft_model)
    num_tokens = fixed_length(wanted, allowed)
    if not (wanted.enabled and allowed.enabled) or num_tokens == 0:
        return None
    chosen = wanted.drafter or allowed.method or "draft_model"
    if chosen == "draft_model" and has_draft_model:
        return "draft_model"
    return "ngram" if allowed.prompt_lookup_max > 0 else None


def fixed_length(wanted: SpeculationSettings, allowed: SpeculationLimits) -> int | None:
    """k where the request or the deployment fixes it, within the limit; None: chosen live."""
    fixed = wanted.num_speculative_tokens
    if fixed is None:
        fixed = allowed.fixed_length
    if fixed is None and allowed.max_num_speculative_tokens > 0:
        return None
    return min(fixed or 0, allowed.max_num_speculative_tokens)


def _check(
    drafter: DraftSource | None, allowed: SpeculationLimits, *, has_draft_model: bool
) -> None:
    if drafter == "draft_model" and not has_draft_model:
        raise InvalidRequest(
            "speculation.drafter: 'draft_model' is not there, this deployment has no draft model",
            param="speculation.drafter",
        )
    if drafter == "ngram" and allowed.prompt_lookup_max == 0:
        raise InvalidRequest(
            "speculation.drafter: 'ngram' is switched off here, prompt_lookup_max is 0",
            param="speculation.drafter",
        )


class FillInDrafter:
    """Implements `ports.Drafter`: `main` while it is ready and has something, else a fill-in.

    A fill-in reads the whole text before its first draft and keeps what it found in it, which is
    seldom used once the main drafter is there: it goes then, and where it is missed a new one is
    made by `new_fill_in`.
    """

    def __init__(self, main: Drafter, new_fill_in: Callable[[], Drafter]) -> None:
        self._main = main
        self._new_fill_in = new_fill_in
        self._fill_in: Drafter | None = None

    @property
    def is_ready(self) -> bool:
        """See `ports.Drafter.is_ready`."""
        return self._main.is_ready or self._filling_in().is_ready

    @property
    def is_over(self) -> bool:
        """See `ports.Drafter.is_over`."""
        return self._main.is_over and self._filling_in().is_over

    @property
    def source(self) -> DraftSource:
        """See `ports.Drafter.source`."""
        return (self._main if self._main.is_ready else self._filling_in()).source

    async def propose(self, committed: TokenSequence, num_draft_tokens: int) -> Proposal:
        """See `ports.Drafter.propose`."""
        if self._main.is_ready:
            try:
                proposal = await self._main.propose(committed, num_draft_tokens)
            except Unavailable:
                pass  # lost just now: it rejoins by itself
            else:
                if proposal.tokens:
                    await self._end_filling_in()
                    return proposal
        return await self._filling_in().propose(committed, num_draft_tokens)

    async def close(self) -> None:
        """See `ports.Drafter.close`."""
        await asyncio.gather(self._main.close(), self._end_filling_in())

    def _filling_in(self) -> Drafter:
        if self._fill_in is None:
            self._fill_in = self._new_fill_in()
        return self._fill_in

    async def _end_filling_in(self) -> None:
        fill_in, self._fill_in = self._fill_in, None
        if fill_in is not None:
            await fill_in.close()
