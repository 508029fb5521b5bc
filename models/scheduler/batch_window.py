"""The batch window: how long a pass is held back for sessions that were just answered.

Sessions that come back at different times would split into alternating half batches, each paying a
whole pass. So a pass waits for those it expects back, by how long each was away before, where that
pays. There are n rows ready and m more expected. T is the time of a pass by rows. D is the time
that a session is away in a round (link, and its draft steps). A round of all of them takes

    together      T(n + m) + D
    apart         max(T(n) + T(m), max(T(n), T(m)) + D)     halves in turn, one away meanwhile

and the shorter one wins. For example, eight sessions of 5 rows that are away for 8 ms, half of them
ready:

    T = 20 ms for any rows     together 20 + 8 = 28 ms    apart max(40, 28) = 40 ms    it waits
    T = 1 ms + 1 ms a row      together 41 + 8 = 49 ms    apart max(42, 29) = 42 ms    it goes

Sessions in the middle of plain steps gain nothing by waiting. The waits are at most 5% of the
passes' time while one is ready. No wait is then longer than three quarters of a pass. A prompt
counts by the rows of its last chunk. It too is better off in the pass of a stream that is soon back
than in one before.

The window is a function of given times; it has no clock of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

from models.costs.pass_times import PassTimes
from models.costs.running_mean import running_mean

_PLAIN_SHARE = 0.05  # part of the passes' time that sessions in plain steps may be held altogether
_PLAIN_BURST = 0.2  # part of a pass that they may be held at once
_DRAFT_SHARE = 0.75  # part of a pass: longest wait otherwise
_FEW_EXPECTED = 4.0  # the wait for few is less long: this times their share of the pass
_SLACK = 0.25  # part of its usual time away: a session later than that is not waited for
_SLACK_S = 0.0003
_AWAY_RISE = 0.2  # weight of the newest time away in the mean of all sessions
_AWAY_FALL = 0.25  # in a session's own, if it is shorter than expected; longer ones count at once
_LONGEST_AWAY_S = 1.0  # a client that took longer was doing something else


class _State(Enum):
    IDLE = auto()
    READY = auto()
    RUNNING_ON = auto()  # ready for a plain step
    AWAITED = auto()
    LATE = auto()


@dataclass(slots=True)
class _Peer:
    """A session as the window knows it.

        IDLE ----- message -----> READY ----- plain step -----> RUNNING_ON
                                  ^   |                             |
                          message |   | answer                      | answer
                                  |   v                             |
                                 AWAITED <--------------------------+
                                  |
                                  | its time is up
                                  v
                                 LATE ------- message ------> READY

    `note_end` leads from READY and RUNNING_ON to IDLE; it says nothing of sessions that are away.
    """

    state: _State = _State.IDLE
    num_rows: int = 1  # rows of its newest message, or of its prompt's last chunk
    answered_s: float | None = None  # when it left, while it is away
    away_s: float | None = None  # how long it may be: drafts differ in length from round to round

    @property
    def is_ready(self) -> bool:
        """True if its rows can be in the next pass."""
        return self.state in (_State.READY, _State.RUNNING_ON)


class BatchWindow:
    """Says who is expected back, and until when waiting for them pays.

    Args:
        times: of the engine's passes, noted there before they are noted here.
    """

    def __init__(self, times: PassTimes) -> None:
        self._times = times
        self._peers: dict[str, _Peer] = {}
        self._away_s: float | None = None  # mean of all, for sessions that were never away before
        self._held_since_s: float | None = None  # since when a pass could have gone
        self._plain_budget_s = 0.0  # time that sessions in plain steps may still be held

    def note_pass(self, duration_s: float) -> None:
        """Take in that a pass of `duration_s` has ended."""
        self._held_since_s = None
        self._plain_budget_s = min(
            self._plain_budget_s + _PLAIN_SHARE * duration_s,
            _PLAIN_BURST * (self._times.mean_s or 0.0),
        )

    def note_message(self, session_id: str, now: float, num_rows: int) -> None:
        """Take in a message of the session that asks for `num_rows` rows with logits."""
        peer = self._peers.setdefault(session_id, _Peer())
        if peer.answered_s is not None:
            self._learn_away(peer, peer.answered_s, now)
        peer.answered_s = None
        peer.state = _State.READY
        peer.num_rows = num_rows

    def _learn_away(self, peer: _Peer, answered_s: float, now: float) -> None:
        """Take in that a peer that was answered at `answered_s` is found back now."""
        most_s = min(now - answered_s, _LONGEST_AWAY_S)
        if answered_s >= self._times.last_ended_s or not self._times.may_have_delayed(now):
            fallen_s = running_mean(peer.away_s, most_s, _AWAY_FALL)
            peer.away_s = max(most_s, fallen_s)
            self._away_s = running_mean(self._away_s, most_s, _AWAY_RISE)
            return
        # Messages are taken between passes. This one may have come at any time of a pass of
        # others, so there are only bounds: it was not there yet when that pass began, and is there
        # now. What is believed stays if it is within them; what is too long is put in their middle.
        # Taken at its word, sessions that take turns would each seem away for a whole pass, and
        # would never meet.
        least_s = min(most_s, max(0.0, self._times.last_began_s - answered_s))
        believed_s = peer.away_s or self._away_s
        if believed_s is None or believed_s > most_s:
            peer.away_s = (least_s + most_s) / 2
        else:
            peer.away_s = max(believed_s, least_s)

    def note_chunk(self, session_id: str, num_rows: int) -> None:
        """Take in that so many rows of the session's prompt were computed and more will be."""
        peer = self._peers.get(session_id)
        if peer is not None:
            peer.num_rows = num_rows

    def note_step(self, session_id: str) -> None:
        """Take in that the session goes on alone for a plain step."""
        peer = self._peers.setdefault(session_id, _Peer())
        peer.state = _State.RUNNING_ON
        peer.num_rows = 1

    def note_answer(self, session_id: str, now: float) -> None:
        """Take in that the session was answered and will come back with its next message."""
        peer = self._peers.setdefault(session_id, _Peer())
        peer.state = _State.AWAITED
        peer.answered_s = now

    def note_end(self, session_id: str) -> None:
        """Take in that work ended without an answer that brings the session back. Idempotent."""
        peer = self._peers.get(session_id)
        if peer is not None and peer.is_ready:
            peer.state = _State.IDLE

    def forget(self, session_id: str) -> None:
        """Forget a session that will not come back. Idempotent."""
        self._peers.pop(session_id, None)

    def wait_s(self, now: float) -> float:
        """Seconds a pass should still wait; 0: go now."""
        if self._held_since_s is None:
            self._held_since_s = now
        ready = [peer for peer in self._peers.values() if peer.is_ready]
        if not ready or self._times.mean_s is None:
            return 0.0
        is_plain = any(peer.state is _State.RUNNING_ON for peer in ready)
        longest_s = self._plain_budget_s if is_plain else self._times.mean_s * _DRAFT_SHARE
        end_s = self._held_since_s + longest_s
        wait_s = self._worth_waiting_until(ready, now, end_s, longest_s) - now
        if wait_s <= 0.0 and is_plain:
            self._plain_budget_s = max(0.0, self._plain_budget_s - (now - self._held_since_s))
            self._held_since_s = now
        return max(0.0, wait_s)

    def _worth_waiting_until(
        self, ready: list[_Peer], now: float, end_s: float, longest_s: float
    ) -> float:
        """Return the latest time until which waiting pays; `now` if it does not."""
        # Those expected back by `end_s`, the first one first, each with the time at which it is
        # given up. A session that is later than that stays LATE until its next message.
        expected = []
        for peer in self._peers.values():
            away_s = peer.away_s or self._away_s
            if peer.state is not _State.AWAITED or peer.answered_s is None or away_s is None:
                continue
            back_s = peer.answered_s + away_s
            latest_s = back_s + _SLACK * away_s + _SLACK_S
            if now >= latest_s:
                peer.state = _State.LATE
            elif back_s <= end_s:
                expected.append((back_s, min(latest_s, end_s), peer.num_rows, away_s))
        expected.sort()
        # Is it worth waiting for the first of them, for the first two, for the first three, ...?
        until_s, out_rows = now, 0
        ready_rows = sum(peer.num_rows for peer in ready)
        # Only these sessions count: one that stays away for long says nothing of a round of the
        # others.
        longest_away_s = max(peer.away_s or 0.0 for peer in ready)
        for number, (back_s, latest_s, num_rows, away_s) in enumerate(expected, start=1):
            out_rows += num_rows
            longest_away_s = max(longest_away_s, away_s)
            held_s = back_s - now
            share = min(1.0, _FEW_EXPECTED * number / (number + len(ready)))
            if held_s <= share * longest_s and self._is_better_together(
                ready_rows, out_rows, longest_away_s
            ):
                until_s = max(until_s, latest_s)
        return until_s

    def _is_better_together(self, num_rows: int, num_more: int, away_s: float) -> bool:
        """Return whether one pass a round beats two; a session is away for `away_s` in a round."""
        by_rows = self._times.by_rows
        one_s, other_s = by_rows.at(num_rows), by_rows.at(num_more)
        together_s = by_rows.at(num_rows + num_more) + away_s
        return together_s < max(one_s + other_s, max(one_s, other_s) + away_s)
