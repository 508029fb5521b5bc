"""The first half of a round: how far to draft is planned, and the draft is fetched."""

from __future__ import annotations

import time

from models.protocol.token_sequence import TokenSequence
from router.drafters.shadow import ShadowDraft
from router.drafters.side_by_side import SessionDrafters, first_with_tokens
from router.planning.round_plan import Misses, RoundPlan
from router.rounds import Round, RoundWatch


class Drafting:
    """Plans the rounds of one session and has its drafters draft them.

    Args:
        drafters: of the session; it is closed with this.
        committed: prompt and generated tokens.
        watch: where it is noted what drafts cost; its planner plans.
    """

    def __init__(
        self, drafters: SessionDrafters, committed: TokenSequence, watch: RoundWatch
    ) -> None:
        self._drafters = drafters
        self._committed = committed
        self._watch = watch
        self._shadow = ShadowDraft(drafters, committed, watch.costs)
        self._misses = Misses()

    def start(self) -> None:
        """Let drafters that have to connect begin to."""
        self._drafters.start()

    async def next_round(self, remaining_tokens: int) -> Round:
        """Plan a round of at most `remaining_tokens` and have it drafted.

        Without a draft the target goes on alone.
        """
        planner, shadow = self._watch.planner, self._shadow
        self._watch.end_round()
        if (outcome := shadow.outcome()) is not None:
            planner.observe_shadow(*outcome)
        planned_at = time.perf_counter()
        # The round emits one token of the target's own, so a draft leaves room for it.
        plan = planner.plan(
            self._drafters.next_drafter,
            max(0, remaining_tokens - 1),
            is_ready=self._drafters.is_ready,
        )
        if plan.num_draft_tokens > 0:
            await shadow.cancel()
            return await self._drafted(plan, planned_at)
        if plan.num_shadow_tokens > 0:
            shadow.start(plan.num_shadow_tokens)
        return Round(plan=plan, planned_at=planned_at)

    async def _drafted(self, plan: RoundPlan, planned_at: float) -> Round:
        proposals = await self._drafters.propose(self._committed, plan.num_draft_tokens)
        for named in proposals:
            self._watch.note_proposal(named.drafter, named.proposal, named.elapsed_ms)
        taken = first_with_tokens(proposals)
        if taken is None or taken.proposal is None:
            return Round(plan=self._misses.next_plan(plan), planned_at=planned_at)
        self._misses.end()
        return Round(
            plan=plan,
            planned_at=planned_at,
            drafter=taken.drafter,
            draft=taken.proposal.tokens,
            draft_probs=taken.proposal.draft_probs,
        )

    async def close(self) -> None:
        """Give up the shadow draft under way and free the drafters. Idempotent; never raises."""
        await self._shadow.cancel()
        await self._drafters.close()
