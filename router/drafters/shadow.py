"""A draft made during plain steps: compared with what the target says, never sent to it.

Nothing would be learnt of the draft while k = 0 pays. An idle drafter costs no time. So a session
may have a few tokens drafted while the target goes on alone. The text shows, by then or soon after,
whether they would have been accepted. At most one such draft is under way in a session. There is
none while the session drafts for real, because both would read the same answers.
"""

from __future__ import annotations

import asyncio

from models.protocol.token_sequence import TokenSequence
from router.drafters.side_by_side import NamedProposal, SessionDrafters, first_with_tokens
from router.planning.costs import PassCosts
from router.ports import DrafterTraits


class ShadowDraft:
    """One session's shadow drafts, one after the other."""

    def __init__(
        self, drafters: SessionDrafters, committed: TokenSequence, costs: PassCosts
    ) -> None:
        self._drafters = drafters
        self._committed = committed
        self._costs = costs
        self._task: asyncio.Task[NamedProposal | None] | None = None
        self._drafter: DrafterTraits | None = None  # that was to draft
        self._start = 0  # committed tokens when the draft was asked for

    def start(self, num_draft_tokens: int) -> None:
        """Have tokens drafted after the committed ones; nothing happens while others are."""
        if self._task is not None:
            return
        self._start = len(self._committed)
        self._drafter = self._drafters.next_drafter
        self._task = asyncio.create_task(self._propose(num_draft_tokens), name="shadow-draft")

    def outcome(self) -> tuple[int, int, float] | None:
        """Return the number of drafted tokens, how many of them the text has, and the time in ms.

        It is 0, 0 if no draft came or the text does not reach its end. None: not known yet.
        """
        task = self._task
        if task is None or not task.done():
            return None
        self._task = None
        named = task.result()
        if named is None or named.proposal is None or named.drafter is not self._drafter:
            return 0, 0, 0.0 if named is None else named.elapsed_ms
        drafted = named.proposal.tokens
        said = self._committed.ids[self._start : self._start + len(drafted)]
        if len(said) < len(drafted):
            return 0, 0, named.elapsed_ms
        num_matched = 0
        while num_matched < len(said) and said[num_matched] == drafted[num_matched]:
            num_matched += 1
        return len(said), num_matched, named.elapsed_ms

    async def cancel(self) -> None:
        """Give up the draft under way, if any: its answer will not be read. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _propose(self, num_draft_tokens: int) -> NamedProposal | None:
        proposals = await self._drafters.propose(self._committed, num_draft_tokens)
        for named in proposals:
            if named.proposal is not None:
                self._costs.observe_draft(named.drafter, named.proposal)
        return first_with_tokens(proposals)
