"""One session as the plan of its replica sees it: its drafter, its survival, its k."""

from __future__ import annotations

from collections.abc import Mapping

from router.planning.acceptance import AcceptanceEstimate
from router.planning.joint import DraftForecast, JointPlan
from router.ports import DrafterTraits

_REFRESH = 4  # rounds with a draft after which a session's survival is looked at again


class PlanMember:
    """A session among those that are planned for together.

    Args:
        estimates: acceptance of each drafter that may draft for the session, by name.
        max_length: the highest k.

    Attributes:
        drafter: of its newest plan.
        limit: the highest k of its newest round.
        num_rows: in its newest pass, as far as planned.
        runs_on: whether its newest plan has it go on alone.
        last_round: of the replica, when it last asked.
    """

    def __init__(self, estimates: Mapping[str, AcceptanceEstimate], max_length: int) -> None:
        self._estimates = estimates
        self._max_length = max_length
        self.drafter: DrafterTraits | None = None
        self.limit = 0
        self._most_room = 0  # the highest limit so far
        self.num_rows = 1
        self.runs_on = False
        self.last_round = 0
        self._length = 0  # by the plan of this version, and this limit
        self._survival: tuple[float, ...] = ()
        self._length_of = (-1, -1)
        self._num_new = 0  # rounds observed since
        self._num_plain = 0  # plain rounds in a row

    def ask(self, drafter: DrafterTraits, max_draft_tokens: int) -> None:
        """Take in who would draft for the next round, and the room that it has."""
        self.drafter = drafter
        self.limit = min(max_draft_tokens, self._max_length)
        self._most_room = max(self._most_room, self.limit)

    def note_plan(self, num_draft_tokens: int, *, runs_on: bool) -> None:
        """Take in the newest plan."""
        self.num_rows = 1 + num_draft_tokens
        self.runs_on = runs_on
        self._num_plain = self._num_plain + 1 if runs_on else 0

    def forget_plan(self) -> None:
        """Ask the next plan for a k anew: it is of another replica."""
        self._length_of = (-1, -1)

    def is_present(self, num_rounds: int, patience: int) -> bool:
        """Return whether it asked for a plan in the last `patience` rounds."""
        return num_rounds - self.last_round <= patience

    def next_run_on(self, steps: tuple[int, int]) -> int:
        """Return the target's steps alone: `steps[0]`, doubled each time up to `steps[1]`."""
        return min(steps[0] << min(self._num_plain, 8), steps[1])

    def length_by(self, plan: JointPlan, version: int) -> int:
        """Return its k by a plan.

        It is kept while plan and room stay and its survival is hardly newer.
        """
        if self._length_of != (version, self.limit) or self._num_new >= _REFRESH:
            is_free = self.drafter is not None and self.drafter.is_free
            self._survival = self.survival()
            self._length = plan.length_of(self._survival, is_free=is_free)
            self._length_of = (version, self.limit)
            self._num_new = 0
        return self._length

    def survival(self) -> tuple[float, ...]:
        """S_1..S_limit of its next draft; empty before it has asked for a plan."""
        if self.drafter is None:
            return ()
        return tuple(self._estimates[self.drafter.name].survival(self.limit))

    def forecast(self) -> DraftForecast:
        """Return the prediction for its drafts, as far as k could go in any of its rounds.

        A plan outlasts the round that it is made in. That round may be the last of a text and have
        room for a token or none.
        """
        if self.drafter is None:
            return DraftForecast(())
        estimate = self._estimates[self.drafter.name]
        return DraftForecast(
            estimate.survival(self._most_room), self.drafter.is_free, estimate.presence
        )

    def observe(self, drafter: DrafterTraits, num_drafted: int, num_accepted: int) -> None:
        """Take in the outcome of a round that had a draft."""
        self._estimates[drafter.name].observe(num_drafted, num_accepted)
        self._num_new += 1
