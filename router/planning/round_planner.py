"""How many tokens a session drafts in its next round: fixed, or planned with all other sessions.

`RoundPlanner` is one session's view: a policy for each source that may draft, what a round without
a draft does, and where the outcome of rounds is reported. What the policies decide by is in
`groups` and `planner`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from models.protocol.messages import DraftSource, Timing
from router.planning.acceptance import AcceptanceEstimate
from router.planning.groups import PLAIN_STEPS, Seat
from router.planning.round_plan import RoundPlan


class DraftLengthPolicy(Protocol):
    """Chooses k for one session and one source of drafts, round by round."""

    def plan(self, max_draft_tokens: int) -> RoundPlan:
        """Plan a round with at most `max_draft_tokens` (0: no draft is to be had)."""
        ...

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Take in the outcome of a round that had a draft."""
        ...


class RoundPlanner:
    """One session's plans: a policy for each source that may draft, and rounds without a draft.

    Args:
        lengths: the policy of each source; empty: nobody drafts.
        run_on: plain steps per round where nobody drafts at all.
        seat: the session's part in the plans of its router, if its k is planned.
    """

    def __init__(
        self,
        lengths: Mapping[DraftSource, DraftLengthPolicy],
        run_on: int,
        seat: Seat | None = None,
    ) -> None:
        self._lengths = lengths
        self._run_on = run_on
        self._seat = seat
        self._num_misses = 0

    def plan(self, source: DraftSource | None, max_draft_tokens: int) -> RoundPlan:
        """Plan a round that `source` would draft for; None: nobody would."""
        if source is None:
            if self._seat is not None:  # drafted for until now, maybe; others plan without it
                self._seat.leave()
            return RoundPlan(0, self._run_on)
        return self._lengths[source].plan(max_draft_tokens)

    def after_miss(self) -> RoundPlan:
        """The plan in place of one whose draft did not come or is empty.

        The target goes on alone, a step further after every second miss: where nothing ever
        matches, a round comes to cost what it costs without a drafter, and where there have been
        matches the next one is noticed soon.
        """
        run_on = min(1 + self._num_misses // 2, PLAIN_STEPS[0])
        self._num_misses += 1
        return RoundPlan(0, run_on)

    def observe(self, source: DraftSource, num_drafted: int, num_accepted: int) -> None:
        """Take in the outcome of a round that had a draft."""
        self._num_misses = 0
        self._lengths[source].observe(num_drafted, num_accepted)

    @property
    def is_awaited(self) -> bool:
        """Whether a round of plain steps should end early because others began to draft."""
        return self._seat is not None and self._seat.is_awaited

    def observe_shadow(self, num_drafted: int, num_matched: int) -> None:
        """Take in the outcome of a shadow draft; 0, 0: there is none."""
        if self._seat is not None:
            self._seat.observe_shadow(num_drafted, num_matched)

    def observe_steps(self, timing: Timing) -> None:
        """Take in who was in the draft steps of a round."""
        if self._seat is not None:
            self._seat.observe_steps(timing)

    def observe_pass(self, timing: Timing) -> None:
        """Take in who was in a target pass."""
        if self._seat is not None:
            self._seat.observe_pass(timing)

    def observe_round(self, plan: RoundPlan, actual_ms: float) -> None:
        """Take in how long a round took, from its plan to its first verdict."""
        if self._seat is not None:
            self._seat.observe_round(plan, actual_ms)

    def close(self) -> None:
        """The session is over. Idempotent."""
        if self._seat is not None:
            self._seat.leave()


class FixedLength:
    """Always k = `num_draft_tokens`, at least 1, where a draft is to be had."""

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens

    def plan(self, max_draft_tokens: int) -> RoundPlan:
        """See `DraftLengthPolicy.plan`."""
        if max_draft_tokens == 0:
            return RoundPlan(0, 1)
        return RoundPlan(min(self._num_draft_tokens, max_draft_tokens), 0)

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """A fixed length learns nothing."""


class PlannedLength:
    """k as the router's planner has it for this session and source."""

    def __init__(
        self, seat: Seat, source: DraftSource, estimate: AcceptanceEstimate, max_length: int
    ) -> None:
        self._seat = seat
        self._source = source
        self._estimate = estimate
        self._max_length = max_length

    def plan(self, max_draft_tokens: int) -> RoundPlan:
        """See `DraftLengthPolicy.plan`."""
        limit = min(max_draft_tokens, self._max_length)
        return self._seat.plan(self._source, self._estimate, limit)

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """See `DraftLengthPolicy.observe`."""
        self._estimate.observe(num_drafted, num_accepted)
