"""A draft beside plain steps: compared with what the target says, never sent to it.

While k = 0 pays nothing would be learnt of the draft. An idle draft model costs nobody's time, so a
session may have a few tokens drafted while the target goes on alone; by the time they are there,
or soon after, the text says whether they would have stood. At most one such draft is under way in
a session, and none while the session drafts for real: both would read the same answers.
"""

from __future__ import annotations

import asyncio
import time

from models.protocol.errors import Unavailable
from models.protocol.messages import DraftSource, Proposal
from models.protocol.token_sequence import TokenSequence
from router.planning.costs import PassCosts
from router.ports import Drafter


class ShadowDraft:
    """One session's shadow drafts, one after the other."""

    def __init__(self, drafter: Drafter, committed: TokenSequence, costs: PassCosts) -> None:
        self._drafter = drafter
        self._committed = committed
        self._costs = costs
        self._task: asyncio.Task[Proposal | None] | None = None
        self._source: DraftSource = "draft_model"
        self._start = 0  # committed tokens when the draft was asked for

    def start(self, num_draft_tokens: int) -> None:
        """Have tokens drafted from here on; nothing happens while others are."""
        if self._task is not None:
            return
        self._start = len(self._committed)
        self._source = self._drafter.source
        self._task = asyncio.create_task(self._propose(num_draft_tokens), name="shadow-draft")

    def outcome(self) -> tuple[int, int] | None:
        """How many tokens were drafted and how many of them the text has; None: not known yet.

        0, 0 where no draft came or not the text reached beyond it.
        """
        task = self._task
        if task is None or not task.done():
            return None
        self._task = None
        proposal = task.result()
        if proposal is None or proposal.source != self._source:
            return 0, 0
        said = self._committed.ids[self._start : self._start + len(proposal.tokens)]
        if len(said) < len(proposal.tokens):
            return 0, 0
        num_matched = 0
        while num_matched < len(said) and said[num_matched] == proposal.tokens[num_matched]:
            num_matched += 1
        return len(said), num_matched

    async def cancel(self) -> None:
        """Give up the draft under way, if any: its answer will not be read. Idempotent."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def _propose(self, num_draft_tokens: int) -> Proposal | None:
        asked_at = time.perf_counter()
        try:
            proposal = await self._drafter.propose(self._committed, num_draft_tokens)
        except Unavailable:
            return None
        self._costs.observe_draft(proposal, (time.perf_counter() - asked_at) * 1e3)
        return proposal
