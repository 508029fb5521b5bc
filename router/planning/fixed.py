"""The planner of a session whose k is fixed, or for which nobody drafts at all."""

from __future__ import annotations

from models.protocol.messages import Timing
from router.planning.round_plan import RoundPlan
from router.ports import DrafterTraits
from router.types import Explanation


class FixedPlanner:
    """Plans k = `num_draft_tokens`, at least 1, where a draft is to be had. It learns nothing.

    Args:
        num_draft_tokens: k.
        run_on: plain steps per round where nobody drafts at all.
        is_own: whether the target drafts for these itself, each draft of k tokens.

    Attributes:
        max_branches: outcomes of a verification that may be drafted after ahead of it.
    """

    is_awaited = False
    is_probing = False
    is_gathering = False
    is_ahead = True
    wants_drafter = True

    def __init__(self, num_draft_tokens: int, run_on: int, *, is_own: bool = False) -> None:
        self.max_branches = 0
        self._num_draft_tokens = num_draft_tokens
        self._run_on = run_on
        self._idle_reason = "the target drafts" if is_own else "nobody drafts"
        self._newest = RoundPlan(0, 0)

    def plan(
        self, drafter: DrafterTraits | None, max_draft_tokens: int, *, is_ready: bool = True
    ) -> RoundPlan:
        """See `adaptive.PlannedSession.plan`."""
        self._newest = self._plan(drafter, max_draft_tokens, is_ready=is_ready)
        return self._newest

    @property
    def num_branches(self) -> int:
        """See `adaptive.PlannedSession.num_branches`."""
        return self.max_branches

    def explain(self) -> Explanation:
        """See `adaptive.PlannedSession.explain`."""
        return Explanation(
            num_draft_tokens=self._newest.num_draft_tokens, reason=self._newest.reason
        )

    def _plan(
        self, drafter: DrafterTraits | None, max_draft_tokens: int, *, is_ready: bool
    ) -> RoundPlan:
        if drafter is None:
            return RoundPlan(0, self._run_on, reason=self._idle_reason)
        if max_draft_tokens == 0 or not is_ready:
            return RoundPlan(0, 1, reason="no draft to be had")
        return RoundPlan(min(self._num_draft_tokens, max_draft_tokens), 0, reason="fixed")

    def observe(self, drafter: DrafterTraits, num_drafted: int, num_accepted: int) -> None:
        """Do nothing: a fixed length learns nothing, here and below."""

    def observe_steps(self, drafter: DrafterTraits, timing: Timing) -> None:
        """See `observe`."""

    def observe_pass(self, timing: Timing) -> None:
        """See `observe`."""

    def observe_round(self, plan: RoundPlan, num_tokens: int, elapsed_ms: float) -> None:
        """See `observe`."""

    def leave(self, num_tokens: int = 0) -> None:
        """Do nothing: there is no group to leave."""
