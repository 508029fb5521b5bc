"""Batch forming: how long a pass is held back for sessions that were just answered.

Sessions that come back at different times would split into alternating half batches, each
paying a whole pass. So a pass waits for those it expects back, by how long each of them was away
before, where that pays. With n sessions ready, m more expected, and D the time that a session is
away in a round (link, and its draft steps), a round of all of them takes

    together      T(n + m) + D
    apart         max(T(n) + T(m), max(T(n), T(m)) + D)     halves in turn, one away meanwhile

(T by rows, as measured), and the shorter one wins. Where rows are cheap that holds a pass for
sessions that are out drafting; where rows cost what they are worth it holds for nobody. Sessions
in the middle of plain steps gain nothing by company: while one is ready the waits are at most 5%
of the passes' time, and none is longer than three quarters of one. A prompt counts by the rows of
its last chunk: it too is better off in the pass of a stream that is soon back than in one before.

Messages are taken between passes. Of one that is found when a pass of others ends only bounds are
known of the time its session was away: what is believed of it stays as long as it is within them,
and what is too long is put in their middle. Or sessions that take turns would each seem to be away
for a whole pass, and would never meet.

Pure bookkeeping of given times; no clock of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.costs.last_pass import LastPass
from models.costs.running_mean import running_mean
from models.costs.table import CostTable

_PLAIN_SHARE = 0.05  # of the passes' time: what sessions in plain steps may be held altogether
_PLAIN_BURST = 0.2  # of a pass: and at once
_DRAFT_SHARE = 0.75  # of a pass: longest wait otherwise
_COMPANY = 4.0  # who waits for few waits less long: this times the share of those expected
_SLACK = 0.25  # of its usual time away: who is later than that is not waited for
_SLACK_S = 0.0003
_AWAY_FALL = 0.25  # weight of a time away that is shorter than expected; longer ones count at once
_LONGEST_AWAY_S = 1.0  # a client that took longer was doing something else


@dataclass(slots=True)
class _Peer:
    """A session as the window knows it."""

    num_rows: int = 1  # of its newest message, or of its prompt's last chunk
    is_ready: bool = False
    is_running_on: bool = False
    is_awaited: bool = False
    answered_s: float | None = None  # when it left, while it is away
    away_s: float | None = None  # how long it may be: drafts differ in length from round to round


class BatchWindow:
    """Who is expected back, and until when waiting for them pays."""

    def __init__(self) -> None:
        self._visitors: dict[str, _Peer] = {}
        self._pass_s: float | None = None
        self._last_pass = LastPass()
        self._away_s: float | None = None  # of all sessions, for those that were never away before
        self._by_rows = CostTable()
        self._held_since_s: float | None = None  # since when a pass could have gone
        self._plain_budget_s = 0.0  # what sessions in plain steps may still be held

    def note_pass(self, duration_s: float, num_rows: int, now: float) -> None:
        """A pass of `num_rows` rows took `duration_s` until `now`."""
        self._last_pass = LastPass(now - duration_s, now)
        self._pass_s = running_mean(self._pass_s, duration_s)
        if duration_s > 0.0:
            self._by_rows.observe(num_rows, duration_s)
        self._held_since_s = None
        self._plain_budget_s = min(
            self._plain_budget_s + _PLAIN_SHARE * duration_s, _PLAIN_BURST * self._pass_s
        )

    def note_message(self, session_id: str, now: float, num_rows: int) -> None:
        """A message of the session came and asks for `num_rows` rows with logits."""
        visitor = self._visitors.setdefault(session_id, _Peer())
        if visitor.answered_s is not None:
            self._learn_away(visitor, visitor.answered_s, now)
        visitor.answered_s = None
        visitor.is_awaited = visitor.is_running_on = False
        visitor.is_ready = True
        visitor.num_rows = num_rows

    def _learn_away(self, visitor: _Peer, answered_s: float, now: float) -> None:
        """The message of a visitor that was answered then is taken now."""
        most_s = min(now - answered_s, _LONGEST_AWAY_S)
        if answered_s >= self._last_pass.ended_s or not self._last_pass.may_have_delayed(now):
            fallen_s = running_mean(visitor.away_s, most_s, _AWAY_FALL)
            visitor.away_s = max(most_s, fallen_s)
            self._away_s = running_mean(self._away_s, most_s)
            return
        least_s = min(most_s, max(0.0, self._last_pass.started_s - answered_s))
        believed_s = visitor.away_s or self._away_s
        if believed_s is None or believed_s > most_s:
            visitor.away_s = (least_s + most_s) / 2
        else:
            visitor.away_s = max(believed_s, least_s)

    def note_chunk(self, session_id: str, num_rows: int) -> None:
        """So many rows of the session's prompt were computed, and more are to follow."""
        visitor = self._visitors.get(session_id)
        if visitor is not None:
            visitor.num_rows = num_rows

    def note_step(self, session_id: str) -> None:
        """The session goes on alone for a plain step."""
        visitor = self._visitors.setdefault(session_id, _Peer())
        visitor.is_ready = visitor.is_running_on = True
        visitor.num_rows = 1

    def note_answer(self, session_id: str, now: float) -> None:
        """The session was answered and will come back with its next message."""
        visitor = self._visitors.setdefault(session_id, _Peer())
        visitor.answered_s = now
        visitor.is_awaited = True
        visitor.is_ready = False

    def note_end(self, session_id: str) -> None:
        """The session's work ended without an answer that brings it back. Idempotent."""
        visitor = self._visitors.get(session_id)
        if visitor is not None:
            visitor.is_ready = False

    def forget(self, session_id: str) -> None:
        """The session will not come back. Idempotent."""
        self._visitors.pop(session_id, None)

    def wait_s(self, now: float) -> float:
        """Seconds a pass should still wait; 0: go now."""
        if self._held_since_s is None:
            self._held_since_s = now
        ready = [visitor for visitor in self._visitors.values() if visitor.is_ready]
        if not ready or self._pass_s is None:
            return 0.0
        longest_s = self._pass_s * _DRAFT_SHARE
        is_plain = any(visitor.is_running_on for visitor in ready)
        if is_plain:
            longest_s = self._plain_budget_s
        wait_s = (
            self._worth_waiting_for(ready, now, self._held_since_s + longest_s, longest_s) - now
        )
        if wait_s <= 0.0 and is_plain:
            self._plain_budget_s = max(0.0, self._plain_budget_s - (now - self._held_since_s))
            self._held_since_s = now
        return max(0.0, wait_s)

    def _worth_waiting_for(
        self, ready: list[_Peer], now: float, end_s: float, longest_s: float
    ) -> float:
        """The latest time until which waiting pays, `now` where it does not."""
        expected = []
        for visitor in self._visitors.values():
            away_s = visitor.away_s or self._away_s
            if not visitor.is_awaited or visitor.answered_s is None or away_s is None:
                continue
            back_s = visitor.answered_s + away_s
            latest_s = back_s + _SLACK * away_s + _SLACK_S
            if now >= latest_s:
                visitor.is_awaited = False
            elif back_s <= end_s:
                expected.append((back_s, min(latest_s, end_s), visitor.num_rows, away_s))
        expected.sort()
        until_s, out_rows = now, 0
        ready_rows = sum(visitor.num_rows for visitor in ready)
        # Of those it is about: one who stays away for long says nothing of a round of the others.
        longest_away_s = max(visitor.away_s or 0.0 for visitor in ready)
        for number, (back_s, latest_s, num_rows, away_s) in enumerate(expected, start=1):
            out_rows += num_rows
            longest_away_s = max(longest_away_s, away_s)
            held_s = back_s - now
            share = min(1.0, _COMPANY * number / (number + len(ready)))
            if held_s <= share * longest_s and self._is_better_together(
                ready_rows, out_rows, longest_away_s
            ):
                until_s = max(until_s, latest_s)
        return until_s

    def _is_better_together(self, num_rows: int, num_more: int, away_s: float) -> bool:
        """Whether one pass a round beats two, where a session is away for `away_s` in a round."""
        one_s, other_s = self._by_rows.at(num_rows), self._by_rows.at(num_more)
        together_s = self._by_rows.at(num_rows + num_more) + away_s
        return together_s < max(one_s + other_s, max(one_s, other_s) + away_s)
