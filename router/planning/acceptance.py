"""Estimates live how likely draft tokens are to be accepted, from censored observations.

Position j of a round is observed only if tokens 1..j-1 were accepted: positions after the first
rejection are unknown. A draft of 4 tokens of which 2 are accepted is three observations: accepted,
accepted, rejected. Per position the estimate is a hazard with a forgetting factor. It is shrunk to
a pool of all sessions of the same drafter and task class. A pool may not know a position, or may
not have seen it for long. Then it takes the value of the position before, and for the first one the
drafter's prior. So longer drafts look worth it again when short ones begin to be accepted.
Positions from `_NUM_POSITIONS` on share one estimate (Kaplan-Meier with a tied tail).

A drafter that copies has no draft if nothing repeats. The share of passes that get one is estimated
in the same way, apart from its acceptance. Both together give the expected rows and tokens of a
round.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

_FORGETTING = 0.98  # a session remembers about 50 rounds
_POOL_FORGETTING = 0.995  # a pool, fed by many sessions, about 200
_POOL_WEIGHT = 20.0  # observations a session needs to outweigh its pool
_PRIOR_WEIGHT = 20.0  # observations a pool needs to outweigh its start
_PRESENCE_WEIGHT = 20.0  # passes that a pool needs to outweigh that each has a draft
_NUM_POSITIONS = 4


class _Hazards:
    """Decayed counts of "accepted" and "at risk" per position."""

    __slots__ = ("_forgetting", "accepted", "at_risk")

    def __init__(self, forgetting: float) -> None:
        self._forgetting = forgetting
        self.at_risk = [0.0] * _NUM_POSITIONS
        self.accepted = [0.0] * _NUM_POSITIONS

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        for index in range(_NUM_POSITIONS):
            self.at_risk[index] *= self._forgetting
            self.accepted[index] *= self._forgetting
        for position in range(min(num_accepted + 1, num_drafted)):
            index = min(position, _NUM_POSITIONS - 1)
            self.at_risk[index] += 1.0
            self.accepted[index] += position < num_accepted


class _Presence:
    """Decayed counts of passes that were to have a draft, and of those that had."""

    __slots__ = ("_forgetting", "asked", "had")

    def __init__(self, forgetting: float) -> None:
        self._forgetting = forgetting
        self.asked = self.had = 0.0

    def observe(self, num_missed: int) -> None:
        keep = self._forgetting ** max(1, num_missed)
        self.asked = keep * self.asked + max(1, num_missed)
        self.had = keep * self.had + (num_missed == 0)


class AcceptancePool:
    """The observations of all sessions of one drafter and task class.

    Args:
        prior: acceptance per position before anything was observed.
    """

    def __init__(self, prior: float) -> None:
        self._prior = prior
        self._hazards = _Hazards(_POOL_FORGETTING)
        self._presence = _Presence(_POOL_FORGETTING)

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Take in one round: `num_accepted` of `num_drafted` tokens were accepted."""
        self._hazards.observe(num_drafted, num_accepted)

    def observe_presence(self, num_missed: int) -> None:
        """See `AcceptanceEstimate.observe_presence`."""
        self._presence.observe(num_missed)

    @property
    def presence(self) -> float:
        """Share of the passes that are to have a draft in which there is one."""
        presence = self._presence
        return (presence.had + _PRESENCE_WEIGHT) / (presence.asked + _PRESENCE_WEIGHT)

    def acceptances(self) -> list[float]:
        """Probability that the token at each tied position is accepted if those before it are."""
        before, rates = self._prior, []
        for accepted, at_risk in zip(self._hazards.accepted, self._hazards.at_risk, strict=True):
            before = (accepted + _PRIOR_WEIGHT * before) / (at_risk + _PRIOR_WEIGHT)
            rates.append(before)
        return rates


class AcceptanceEstimate:
    """One session's estimate, leaning on its pool while it has seen little itself."""

    def __init__(self, pool: AcceptancePool) -> None:
        self._pool = pool
        self._hazards = _Hazards(_FORGETTING)
        self._presence = _Presence(_FORGETTING)

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Take in one round of this session, for itself and for its pool."""
        if num_drafted == 0:
            return
        self._hazards.observe(num_drafted, num_accepted)
        self._pool.observe(num_drafted, num_accepted)

    def observe_presence(self, num_missed: int) -> None:
        """Note that a requested draft came (0), or how many passes the target made alone."""
        self._presence.observe(num_missed)
        self._pool.observe_presence(num_missed)

    @property
    def presence(self) -> float:
        """Share of the passes that are to have a draft in which there is one."""
        presence = self._presence
        return (presence.had + _POOL_WEIGHT * self._pool.presence) / (presence.asked + _POOL_WEIGHT)

    def survival(self, num_draft_tokens: int) -> Sequence[float]:
        """S_1..S_k: probability that at least j draft tokens are accepted. Non-increasing."""
        hazards = self._hazards
        rates = [
            (accepted + _POOL_WEIGHT * pooled) / (at_risk + _POOL_WEIGHT)
            for accepted, at_risk, pooled in zip(
                hazards.accepted, hazards.at_risk, self._pool.acceptances(), strict=True
            )
        ]
        tail = [rates[-1]] * (num_draft_tokens - len(rates))
        return list(accumulate((rates + tail)[:num_draft_tokens], mul))
