"""Chooses whether drafts are made ahead, by measured rounds with and without them.

Drafts ahead cost nothing where the draft model has a device of its own, and much where it shares
one. Nothing but the time of rounds tells which. So all sessions of a target take one way, and the
other one has a short turn now and then. The pause after a turn is so long that little is lost.
"""

from __future__ import annotations

from collections.abc import Callable

_SETTLING = 2  # rounds of each session in a turn that do not count: their drafts are of before
_LENGTH = 8  # rounds of each session that do
_STAYING = 32  # rounds of each session before the first turn
_MARGIN = 1.01  # the other way must be so much faster
_LOSING = 0.005  # share of the time that turns may lose
_LEAST_LOSS = 0.02  # part of a turn that counts as lost in any case
_MOST_PAUSE_S = 60.0
_DECAY = 0.97  # of what was measured, with each round


class AheadChoice:
    """The choice of all sessions on a replica.

    Args:
        clock: seconds.

    Attributes:
        is_on: whether drafts are made ahead now.
        is_turn: whether that is a turn of the other way.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self.is_on = True
        self.is_turn = False
        self._num_rounds = 0  # of the turn, or since the last one
        self._tokens = self._elapsed_ms = 0.0  # of rounds that count
        self._stayed = 0.0  # tokens per ms of the way that is in use
        self._began_s = self._next_s = 0.0

    def observe(self, num_tokens: float, elapsed_ms: float, num_sessions: int) -> None:
        """Take in a round with a draft.

        Args:
            num_tokens: that were expected of it: chance has no part in them.
            elapsed_ms: that it took.
            num_sessions: that are planned together.
        """
        self._num_rounds += 1
        if self._num_rounds > _SETTLING * num_sessions:
            keep = 1.0 if self.is_turn else _DECAY
            self._tokens = keep * self._tokens + num_tokens
            self._elapsed_ms = keep * self._elapsed_ms + elapsed_ms
        if self.is_turn and self._num_rounds >= (_SETTLING + _LENGTH) * num_sessions:
            self._end_turn()
        elif not self.is_turn and self._num_rounds >= _STAYING * num_sessions:
            self._may_begin_turn()

    def forget(self) -> None:
        """Have drafts made ahead again, if none are; the pause before the next turn stays."""
        if not self.is_on:
            self._take_other_way(is_turn=False)

    @property
    def _rate(self) -> float:
        return self._tokens / max(self._elapsed_ms, 1e-9)

    def _may_begin_turn(self) -> None:
        if self._clock() >= self._next_s:
            self._stayed = self._rate
            self._take_other_way(is_turn=True)

    def _take_other_way(self, *, is_turn: bool) -> None:
        self.is_on, self.is_turn = not self.is_on, is_turn
        self._num_rounds, self._tokens, self._elapsed_ms = 0, 0.0, 0.0
        self._began_s = self._clock()

    def _end_turn(self) -> None:
        rate, now_s = self._rate, self._clock()
        loss = max(1.0 - rate / max(self._stayed, 1e-9), _LEAST_LOSS)
        self._next_s = now_s + min((now_s - self._began_s) * loss / _LOSING, _MOST_PAUSE_S)
        if rate > _MARGIN * self._stayed:  # the way of the turn stays in use
            self.is_turn, self._num_rounds = False, 0
        else:
            self._take_other_way(is_turn=False)
