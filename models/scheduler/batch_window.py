"""The batch window: how long a pass is held back for sessions that were just answered.

Sessions that come back at different times would split into groups that take turns. Each group pays
a whole pass. So a pass waits for those it expects back where that pays, by how long each was away
before. T is the time of a pass by rows. D is the time that a session is away in a round (link, and
its draft steps). A pass begins with n rows. Those who are back at its end share the next pass, of m
rows. All others share one more, of r. A group waits for the others' passes. So a round takes

    max(T(n) + T(m) + T(r), max(T(n), T(m), T(r)) + D)

where no rows have no pass. A pass that begins later has more rows. For example, half of eight
sessions are ready, of 5 rows each, and are away for 8 ms:

    T = 20 ms for any rows     all: 20 + 8 = 28 ms    halves: max(40, 28) = 40 ms    it waits
    T = 1 ms + 1 ms a row      all: 41 + 8 = 49 ms    halves: max(42, 29) = 42 ms    it goes

In the first case, away for 21 ms, three groups become two: 41 ms in place of 60. A sender says how
long it was away. A message that comes while a pass runs is found at that pass's end.

Sessions in the middle of plain steps gain nothing by waiting. The waits are at most 5% of the
passes' time while one is ready. No wait is then longer than three quarters of a pass. A prompt
counts by the rows of its last chunk. It too is better off in the pass of a stream that is soon back
than in one before.

The window is a function of given times; it has no clock of its own.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum, auto
from itertools import accumulate
from statistics import median
from typing import NamedTuple

from models.costs.pass_times import PassTimes
from models.costs.running_mean import running_mean

_PLAIN_SHARE = 0.05  # part of the passes' time that sessions in plain steps may be held altogether
_PLAIN_BURST = 0.2  # part of a pass that they may be held at once
_DRAFT_SHARE = 0.75  # part of a pass: longest wait otherwise
_FEW_EXPECTED = 4.0  # the wait for few is less long: this times their share of the pass
_ROUND = 2.0  # passes: who is back later takes no turns with the others
_WORTH = 0.97  # part of a round apart that one together may take; measured times differ as much
_SLACK = 0.25  # part of its usual time away: a session later than that is not waited for
_SLACK_S = 0.0003
_AWAY_RISE = 0.2  # weight of the newest time away in the mean of all sessions
_AWAY_FALL = 0.4  # in a session's own, if it is shorter than expected; longer ones count at once
_FEW_LINKS, _MANY_LINKS = 3, 9  # samples of the time under way: for a median, and all
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
        self._links_s: deque[float] = deque(maxlen=_MANY_LINKS)  # messages under way, both ways
        self._held_since_s: float | None = None  # since when a pass could have gone
        self._plain_budget_s = 0.0  # time that sessions in plain steps may still be held

    def note_pass(self, duration_s: float) -> None:
        """Take in that a pass of `duration_s` has ended."""
        self._held_since_s = None
        self._plain_budget_s = min(
            self._plain_budget_s + _PLAIN_SHARE * duration_s,
            _PLAIN_BURST * (self._times.mean_s or 0.0),
        )

    def note_message(self, session_id: str, now: float, num_rows: int, away_s: float = 0.0) -> None:
        """Take in a message of the session that asks for `num_rows` rows with logits.

        `away_s`: from when the sender had the answer until it made this message; 0.0: unknown.
        """
        peer = self._peers.setdefault(session_id, _Peer())
        if peer.answered_s is not None:
            self._learn_away(peer, now - peer.answered_s, now, away_s)
        peer.answered_s = None
        peer.state = _State.READY
        peer.num_rows = num_rows

    def _learn_away(self, peer: _Peer, found_s: float, now: float, away_s: float) -> None:
        """Take in that a peer is found back, so long after its answer.

        Messages are taken between passes, and this one may have come at any time of a pass of
        others. Then its sender's word counts, with the time that messages are under way. Otherwise
        sessions that take turns would each seem away for a whole pass, and would never meet.
        """
        answered_s, most_s = now - found_s, min(found_s, _LONGEST_AWAY_S)
        if answered_s >= self._times.last_ended_s or not self._times.may_have_delayed(now):
            if away_s > 0.0:
                self._links_s.append(max(0.0, found_s - away_s))
            found_s, most_s = most_s, _LONGEST_AWAY_S
        else:
            is_known = len(self._links_s) >= _FEW_LINKS
            link_s = median(self._links_s) if is_known else 0.0
            said_s = away_s + link_s if away_s > 0.0 else peer.away_s
            if said_s is None:
                return
            least_s = self._times.last_began_s - answered_s  # it was not there yet
            found_s = min(max(least_s, said_s), most_s)
        mean_s = running_mean(peer.away_s, found_s, _AWAY_FALL)
        peer.away_s = min(max(found_s, mean_s), most_s)
        self._away_s = running_mean(self._away_s, found_s, _AWAY_RISE)

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
        expected = self._expected(now)
        turns = _Turns(expected, self._times.by_rows.at)
        # Only these sessions count: one that stays away for long says nothing of a round of the
        # others.
        longest_away_s = max(peer.away_s or 0.0 for peer in ready)
        until_s, num_rows = now, sum(peer.num_rows for peer in ready)
        apart = turns.from_pass(now, num_rows, 0)
        # Is it worth waiting for the first of them, for the first two, for the first three, ...?
        for number, one in enumerate(expected, start=1):
            if one.back_s > end_s:
                break
            num_rows += one.num_rows
            longest_away_s = max(longest_away_s, one.away_s)
            share = min(1.0, _FEW_EXPECTED * number / (number + len(ready)))
            if one.back_s - now > share * longest_s:
                continue
            together = turns.from_pass(max(now, one.back_s), num_rows, number)
            if together.round_s(longest_away_s) < _WORTH * apart.round_s(longest_away_s):
                until_s = max(until_s, min(one.latest_s, end_s))
        return until_s

    def _expected(self, now: float) -> list[_Return]:
        """Return who is expected back in this round, the first one first.

        A session that is later than its time stays LATE until its next message.
        """
        found = []
        for peer in self._peers.values():
            away_s = peer.away_s or self._away_s
            if peer.state is not _State.AWAITED or peer.answered_s is None or away_s is None:
                continue
            back_s = peer.answered_s + away_s
            latest_s = back_s + _SLACK * away_s + _SLACK_S
            if now >= latest_s:
                peer.state = _State.LATE
            elif back_s - now <= _ROUND * (self._times.mean_s or 0.0):
                found.append(_Return(back_s, latest_s, peer.num_rows, away_s))
        return sorted(found)


class _Return(NamedTuple):
    """When a session is expected back and when given up, its rows, and how long it is away."""

    back_s: float
    latest_s: float
    num_rows: int
    away_s: float


class _Round(NamedTuple):
    """The passes of groups that take turns."""

    sum_s: float
    longest_s: float

    def round_s(self, away_s: float) -> float:
        """Return the time of a round in which a session is away for so long."""
        return max(self.sum_s, self.longest_s + away_s)


class _Turns:
    """Groups that sessions form by when they are back, in order; `at` is a pass's time by rows."""

    def __init__(self, expected: Sequence[_Return], at: Callable[[float], float]) -> None:
        self._back_s = [one.back_s for one in expected]
        self._rows_before = [0, *accumulate(one.num_rows for one in expected)]
        self._at = at

    def from_pass(self, now: float, num_rows: int, num_in: int) -> _Round:
        """Return the round from a pass of so many rows on, the first `num_in` sessions' with them.

        Those who are back by its end share the next pass, and all others another one.
        """
        num_next = max(num_in, bisect_right(self._back_s, now + self._at(num_rows)))
        before = self._rows_before
        groups = (num_rows, before[num_next] - before[num_in], before[-1] - before[num_next])
        passes_s = [self._at(number) for number in groups if number > 0]
        return _Round(sum(passes_s), max(passes_s))
