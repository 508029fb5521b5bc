"""Chooses the length of the target's own drafts: the one that brings most tokens a second.

The number of tokens follows from how often the token of each place was accepted, if those before it
were. The time is that of rounds with so many sessions and tokens, as it was measured. It is the
known time of the pass and the drafting until then. Now and then another length is tried.
"""

from __future__ import annotations

import math
from collections import deque
from itertools import accumulate
from operator import mul
from statistics import median

from models.costs.pass_times import PassTimes
from models.costs.running_mean import running_mean

_PRIOR = 0.5  # rate of a place's token, if those before it are accepted
_LEAST_SHARE = 0.02  # weight of the newest token in a place's running mean; at first it is more
_TRY_EVERY = 64  # drafts; then another length that may pay is tried
_TRY_ANY_EVERY = 256  # drafts; then a token is tried where no length may pay
_NUM_TRIES = 3  # drafts in a row: the first makes up for what was left out before it
_LEAST_GAIN = 1.03  # gain of drafts over none: measurements are uncertain
_LEAST_GAIN_TO_BEGIN = 1.08
_SESSIONS_SHARE = 0.1  # weight of the newest drafts in the running mean of their number
_MAY_PAY = 0.8  # part of the best length's tokens a second
_NUM_SAMPLES = 5  # durations that a median is of
_COST_SHARE = 0.1  # weight of the newest draft in the running mean of what a token takes


class DraftLengths:
    """Statistics of all sessions together, and what follows from them.

    Args:
        longest: tokens of a draft.
        times: of passes.
    """

    def __init__(self, longest: int, times: PassTimes) -> None:
        self._times = times
        self._rates = [_PRIOR] * longest
        self._num_seen = [0] * longest
        self._token_s: float | None = None  # time of drafting a token for all sessions
        self._num_drafts = 0
        self._tried: tuple[int, int] = (
            0,
            0,
        )  # a length that is being tried, and how often it will be
        # By sessions and tokens: what it took from a draft to the next.
        self._rounds_s: dict[tuple[int, int], deque[float]] = {}
        self._num_sessions = 0.0  # lately
        self._newest = 0  # length
        self.fixed: int | None = None  # that all drafts are to have, whatever pays

    def note(self, num_drafted: int, num_accepted: int) -> None:
        """Note that so many tokens of a draft were accepted, none behind the first rejected one."""
        for place in range(min(num_drafted, num_accepted + 1)):
            self._num_seen[place] += 1
            share = max(_LEAST_SHARE, 1.0 / (2 + self._num_seen[place]))
            is_right = float(place < num_accepted)
            self._rates[place] = running_mean(self._rates[place], is_right, share)

    def note_round(self, num_sessions: int, length: int, taken_s: float) -> None:
        """So many sessions with drafts of so many tokens were back after `taken_s`."""
        kept = self._rounds_s.setdefault((num_sessions, length), deque(maxlen=_NUM_SAMPLES))
        kept.append(taken_s)

    def note_drafting(self, length: int, taken_s: float) -> None:
        """Drafts of so many tokens took so long to make."""
        self._token_s = running_mean(self._token_s, taken_s / length, _COST_SHARE)

    def choose(self, num_sessions: int) -> int:
        """Tokens of the next drafts of so many sessions.

        Sessions come and go with their messages, and left out rows must be made up for when drafts
        begin again. So the recent number of sessions counts if it was larger.
        """
        if self.fixed is not None:
            return self.fixed
        lately = running_mean(self._num_sessions, num_sessions, _SESSIONS_SHARE)
        self._num_sessions = max(lately, float(num_sessions))
        self._newest = self._choose(round(self._num_sessions))
        return self._newest

    def _choose(self, num_sessions: int) -> int:
        length, num_left = self._tried
        if num_left > 0:
            self._tried = length, num_left - 1
            return length
        self._num_drafts += 1
        rates = self._tokens_per_s(num_sessions)
        rates[0] *= _LEAST_GAIN if self._newest else _LEAST_GAIN_TO_BEGIN
        best = rates.index(max(rates))
        rivals = [n for n, rate in enumerate(rates) if rate >= _MAY_PAY * rates[best] and n != best]
        num_tries, rest = divmod(self._num_drafts, _TRY_EVERY)
        if rivals and rest == 0:
            length = rivals[num_tries % len(rivals)]
        elif best == 0 and self._num_drafts % _TRY_ANY_EVERY == 0:
            length = 1  # nothing is learnt of acceptance without a draft
        else:
            return best
        self._tried = length, _NUM_TRIES - 1
        return length

    @property
    def longest(self) -> int:
        """Tokens of a draft."""
        return len(self._rates)

    def _tokens_per_s(self, num_sessions: int) -> list[float]:
        """Return the tokens per second of a session, for each length from 0 on."""
        survival = accumulate(self._rates, mul, initial=1.0)
        return [
            num_tokens / (self.expected_s(num_sessions, length) or math.inf)
            for length, num_tokens in enumerate(accumulate(survival))
        ]

    def _is_measured(self, num_sessions: int, length: int) -> bool:
        return len(self._rounds_s.get((num_sessions, length), ())) > 1

    def expected_s(self, num_sessions: int, length: int) -> float:
        """Return the expected time of a round of so many sessions with drafts of so many tokens."""
        if self._is_measured(num_sessions, length):
            return median(self._rounds_s[num_sessions, length])
        pass_s = self._times.by_rows.at(num_sessions * (1 + length))
        drafting_s = length * (self._token_s or 0.0)
        if length > 0 and self._is_measured(num_sessions, 0):
            beside_s = self.expected_s(num_sessions, 0) - self._times.by_rows.at(num_sessions)
            return max(0.0, beside_s) + pass_s + drafting_s
        return pass_s + drafting_s
