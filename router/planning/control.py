"""A control round: where all draft, all go on alone for a round, so that this is measured too.

Nobody drafts until all have ended theirs. Drafts beside it made plain decoding seem slow.
"""

from __future__ import annotations

from collections.abc import Iterable

from router.planning.member import PlanMember

_ROUNDS = 3  # of each session that it may take; a client may be slow to read


class ControlRound:
    """The sessions that are to make a control round, and those that make it now."""

    def __init__(self) -> None:
        self._coming: set[PlanMember] = set()
        self._members: set[PlanMember] = set()
        self._last_round = 0  # the number of the last round that is plain for it

    @property
    def is_gathering(self) -> bool:
        """True while it is to begin for some sessions."""
        return bool(self._coming)

    @property
    def is_on(self) -> bool:
        """True until it is over for all."""
        return bool(self._coming or self._members)

    def begin(self, sessions: Iterable[PlanMember], round_number: int) -> None:
        """Let these sessions make one, after the planned round of this number."""
        self._coming, self._members = set(sessions), set()
        self._last_round = round_number + _ROUNDS * len(self._coming)

    def enter(self, session: PlanMember) -> bool:
        """Return whether the session makes it now: it was to, and has not."""
        is_due = session in self._coming
        if is_due:
            self._coming.remove(session)
            self._members.add(session)
        return is_due

    def end_round(self, session: PlanMember, round_number: int) -> bool:
        """Let it be over for the session if it makes it, and for all if that takes long.

        Returns whether it ended.
        """
        was_on = self.is_on
        self._members.discard(session)
        if round_number > self._last_round:
            self._coming, self._members = set(), set()
        return was_on and not self.is_on

    def leave(self, session: PlanMember) -> bool:
        """Let the session go, which makes none any more; return whether it ended for all."""
        was_on = self.is_on
        self._members.discard(session)
        self._coming.discard(session)
        return was_on and not self.is_on
