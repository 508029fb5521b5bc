"""A session among those that a plan is made for together."""

from __future__ import annotations

from collections.abc import Mapping

from router.planning.acceptance import AcceptanceEstimate
from router.planning.joint import DraftForecast
from router.planning.round_plan import Mode, RoundPlan
from router.ports import DrafterTraits

# Worth as those of `planner.py` (`--set member._NAME=VALUE`).
_PROBE_WEIGHT = 16  # drafts that a probe counts for; 8 and a length of 2: 0.90 at 20 s (of 0.91)


class PlanMember:
    """A session among those that are planned for together.

    Args:
        estimates: acceptance of each drafter that may draft for the session, by name.
        max_length: the highest k.
        run_on: plain steps per round without a draft. The target is stopped once others draft.
    """

    def __init__(
        self, estimates: Mapping[str, AcceptanceEstimate], max_length: int, run_on: int
    ) -> None:
        self._estimates = estimates
        self._max_length = max_length
        self.run_on = run_on
        self.drafter: DrafterTraits | None = None  # of its newest plan
        self.limit = 0  # the highest k of its newest round
        self._most_room = 0  # the highest limit so far
        self.newest = RoundPlan(0, 0)
        self.last_round = 0  # of the replica, when it last asked
        self.begin()

    def begin(self) -> None:
        """Begin on a replica, where nothing of it was measured yet."""
        self.modes: set[Mode | None] = set()  # of its rounds there; None: a probe's
        self.num_planned = 0  # sessions that its first round there was planned for
        self.num_tokens, self.elapsed_ms = 0, 0.0  # of its rounds there behind the prompt

    def ask(self, drafter: DrafterTraits, max_draft_tokens: int) -> None:
        """Take in who would draft for the next round, and the room that it has."""
        self.drafter = drafter
        self.limit = min(max_draft_tokens, self._max_length)
        self._most_room = max(self._most_room, self.limit)

    @property
    def copies(self) -> bool:
        """True if its drafter copies text, which costs next to nothing to ask for."""
        return self.drafter is not None and self.drafter.is_free

    @property
    def num_rows(self) -> int:
        """Rows in its newest pass, as far as planned."""
        return 1 + self.newest.num_draft_tokens

    def survival(self) -> tuple[float, ...]:
        """S_1..S_limit of its next draft; empty before it has asked for a plan."""
        if self.drafter is None:
            return ()
        return tuple(self._estimates[self.drafter.name].survival(self.limit))

    def forecast(self) -> DraftForecast:
        """Return the prediction for its drafts, as far as k could go in any of its rounds.

        A plan outlasts the round that it is made in, which may have room for a token or none.
        """
        if self.drafter is None:
            return DraftForecast(())
        estimate = self._estimates[self.drafter.name]
        return DraftForecast(
            estimate.survival(self._most_room), self.drafter.is_free, estimate.presence
        )

    def observe(self, drafter: DrafterTraits, num_drafted: int, num_accepted: int) -> None:
        """Take in the outcome of a round that had a draft."""
        for _ in range(_PROBE_WEIGHT if self.newest.is_probe else 1):
            self._estimates[drafter.name].observe(num_drafted, num_accepted)
