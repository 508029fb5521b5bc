"""Decides when to try the other mode, and when to make shadow drafts.

Both kinds of exploration cost time. The pause after each is so long that its cost stays a given
share of all time. For example, each session lost 20 ms in a stretch, and 0.5% may be lost. The next
stretch then comes after 4 s. The first pauses after a change of mode are shorter, because least is
known then.
"""

from __future__ import annotations

from router.planning.member import PlanMember
from router.planning.round_plan import Mode

# Shares of the time.
_LOSING = 0.005  # that may be lost by stretches of the other mode
_STRETCHING = 0.05  # that stretches may take, also where nothing is lost
_SHADOWING = 0.02  # that turns to have a shadow draft may take

_ROUNDS = {Mode.DRAFTING: 6, Mode.PLAIN: 2}  # rounds of each session in a stretch, half to settle
_WAITS = 4  # rounds without a draft for each that was to have one, then a stretch is given up
_HOPELESS = 4  # times as long are pauses before a mode that does not even promise to be better
_LEAST_PRICE = 0.1  # part of a shadow draft's time, for the router's own work
_PRICE_SMOOTHING = 0.2
_FIRST_TURNS = 8  # after a change of mode, that are paid for by the draft's own time alone
_FIRST_PAUSES = 4  # the first after a change of mode is so much shorter, each next one doubles


class Stretches:
    """Stretches of rounds in which all sessions of a replica follow the other mode."""

    def __init__(self) -> None:
        self._num_left = self._num_rounds = self._num_waits = 0  # rounds of the stretch under way
        self._began_s = self._next_s = 0.0
        self._lost_ms = 0.0  # by each session, in the newest one
        self._num_begun = 0  # since the mode changed

    @property
    def is_on(self) -> bool:
        """True if rounds that are planned now belong to a stretch."""
        return self._num_left > 0

    @property
    def is_settled(self) -> bool:
        """True if half of the stretch is over, and sessions have come into step."""
        return 2 * (self._num_rounds - self._num_left) >= self._num_rounds

    def is_due(self, now_s: float) -> bool:
        """Return whether the pause is over."""
        return now_s >= self._next_s

    def begin(self, mode: Mode, num_sessions: int, round_ms: float, now_s: float) -> None:
        """Begin a stretch of `mode`, whose rounds are expected to take so long."""
        self._num_left = self._num_rounds = _ROUNDS[mode] * num_sessions
        self._num_waits = 0
        self._began_s, self._lost_ms = now_s, 0.0
        self._num_begun += 1
        # The next try if no round of it is ever seen to end, as with very short texts:
        self._next_s = now_s + _ROUNDS[mode] * round_ms / 1e3 / _STRETCHING

    def count_down(self, *, is_waiting: bool) -> None:
        """Count a round, unless it waits for a drafter; too many that wait end the stretch."""
        self._num_waits += is_waiting
        self._num_left -= not is_waiting
        if self._num_waits > _WAITS * self._num_rounds:
            self._num_left = 0

    def note_loss(self, lost_ms: float, now_s: float, *, is_promising: bool) -> None:
        """Note that a round of the newest stretch is over, and the loss of each session."""
        self._lost_ms += lost_ms
        pause_s = max(self._lost_ms / 1e3 / _LOSING, (now_s - self._began_s) / _STRETCHING)
        factor = 1 if is_promising else _HOPELESS
        self._next_s = now_s + pause_s * factor * _early(self._num_begun)

    def restart(self, now_s: float, round_ms: float) -> None:
        """Restart after a change of mode: the next try is soon, but not at once."""
        self._num_begun = 0
        self._next_s = now_s + round_ms / 1e3 / _STRETCHING


class ShadowTurn:
    """Chooses the session that makes a shadow draft: one at a time, then a pause.

    A drafter is idle while no session drafts, but it may share the target's machine. Its shadow
    drafts then make rounds longer. So a turn's price is the part of a draft's time by which rounds
    were seen to take longer. All of it is the price until that is known. A turn begins before the
    session's drafter is connected, because reading the text may take longer than the draft. The
    first turns after a change of mode are cheap, because least is known then.
    """

    def __init__(self) -> None:
        self.session: PlanMember | None = None
        self._began_s = 0.0  # its turn
        self._is_out = False
        self._next_s = 0.0
        self._num_begun = 0  # since the mode changed
        self._delay_ms = 0.0  # delay of the round that had the newest one
        self._price = 1.0  # part of a shadow draft's time that it takes from the target

    def note_delay(self, delay_ms: float) -> None:
        """Take in the time by which a round with a shadow draft took longer than others."""
        self._delay_ms = delay_ms

    def take(self, session: PlanMember, now_s: float, *, is_ready: bool) -> bool:
        """Return whether a session is to have a shadow draft in its next round.

        A session whose drafter is not connected gets the turn too. It connects, and drafts in a
        later round.
        """
        if self.session is None and now_s >= self._next_s:
            self.session, self._is_out, self._began_s = session, False, now_s
        if self.session is not session or self._is_out or not is_ready:
            return False
        self._is_out = True
        self._num_begun += 1
        return True

    def end(self, elapsed_ms: float, now_s: float, *, is_promising: bool) -> None:
        """Take the turn back from the session; the draft took `elapsed_ms`."""
        self.session = None
        if elapsed_ms > 0.0:
            # Rounds differ by more than that, so it is the mean that counts.
            self._price += _PRICE_SMOOTHING * (self._delay_ms / elapsed_ms - self._price)
        is_first = self._num_begun <= _FIRST_TURNS
        turn_s = elapsed_ms / 1e3 if is_first else max(elapsed_ms / 1e3, now_s - self._began_s)
        paid_s = min(1.0, max(_LEAST_PRICE, self._price)) * turn_s
        factor = 1 if is_promising else _HOPELESS
        self._next_s = now_s + paid_s / _SHADOWING * factor * _early(self._num_begun)

    def restart(self, now_s: float) -> None:
        """Restart after a change of mode: shadow drafts may begin at once."""
        self._num_begun, self._next_s = 0, now_s


def _early(num_times: int) -> float:
    """Return the share of a pause that is made while little is known."""
    return min(1.0, 2.0**num_times / _FIRST_PAUSES)
