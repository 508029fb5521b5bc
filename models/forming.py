"""Batch forming: how long a pass is held back for sessions that were just answered.

Sessions that come back at different times would split into alternating half batches, each
paying a whole pass. So a pass waits for the sessions it expects back, at most twice the usual
time between an answer and the next message and at most 5% of a pass, and goes when all are in.
Pure bookkeeping of given times; no clock of its own.
"""

from __future__ import annotations

_PASS_SHARE = 0.05
_LINK_FACTOR = 2.0
_SMOOTHING = 0.2  # weight of the newest value in a running mean
_LONGEST_LINK_S = 0.05  # a client that took longer was doing something else


class FormingWindow:
    """Who is expected back, and until when waiting for them pays."""

    def __init__(self) -> None:
        self._answered_s: dict[str, float] = {}  # when sessions that have not come back left
        self._awaited: set[str] = set()  # those of them that a pass waits for
        self._opened_s = 0.0  # time of the newest answer that expects a session back
        self._link_s: float | None = None
        self._pass_s: float | None = None

    def note_pass(self, duration_s: float) -> None:
        """A pass took `duration_s`."""
        self._pass_s = running_mean(self._pass_s, duration_s)

    def note_answer(self, session_id: str, now: float) -> None:
        """The session was answered and will come back with its next message."""
        self._answered_s[session_id] = now
        self._awaited.add(session_id)
        self._opened_s = now

    def note_message(self, session_id: str, now: float) -> None:
        """A message of the session came."""
        self._awaited.discard(session_id)
        answered_s = self._answered_s.pop(session_id, None)
        if answered_s is not None:
            self._link_s = running_mean(self._link_s, min(now - answered_s, _LONGEST_LINK_S))

    def forget(self, session_id: str) -> None:
        """The session will not come back. Idempotent."""
        self._awaited.discard(session_id)
        self._answered_s.pop(session_id, None)

    def wait_s(self, now: float) -> float:
        """Seconds a pass should still wait; 0: go now."""
        if not self._awaited or self._link_s is None or self._pass_s is None:
            return 0.0
        window_s = min(_LINK_FACTOR * self._link_s, _PASS_SHARE * self._pass_s)
        if self._link_s > window_s:  # they cannot be back in time
            return 0.0
        left_s = self._opened_s + window_s - now
        if left_s <= 0:
            self._awaited.clear()  # who missed the window is not waited for again
            return 0.0
        return left_s


def running_mean(mean: float | None, value: float) -> float:
    """The exponential running mean after one more value; None: there was none before."""
    return value if mean is None else mean + _SMOOTHING * (value - mean)
