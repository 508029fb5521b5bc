"""How likely draft tokens are to be accepted, estimated live from censored observations.

Position j of a round is observed only if tokens 1..j-1 were accepted: what follows the first
rejection says nothing. A draft of 4 tokens of which 2 are accepted is three observations: accepted,
accepted, rejected. Per position the estimate is a hazard with a forgetting factor, shrunk to a pool
of all sessions of the same drafter and task class. What a pool does not know of a position, or has
long not seen, it takes from the position before, and of the first one from the drafter's prior:
where short drafts begin to stand, longer ones look worth it again. Positions from `_NUM_POSITIONS`
on share one estimate (Kaplan-Meier with a tied tail).
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from operator import mul

_FORGETTING = 0.98  # a session remembers about 50 rounds
_POOL_FORGETTING = 0.995  # a pool, fed by many sessions, about 200
_POOL_WEIGHT = 20.0  # observations a session needs to outweigh its pool
_PRIOR_WEIGHT = 20.0  # observations a pool needs to outweigh its start
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


class AcceptancePool:
    """What all sessions of one drafter and task class have seen.

    Args:
        prior: acceptance per position before anything was observed.
    """

    def __init__(self, prior: float) -> None:
        self._prior = prior
        self._hazards = _Hazards(_POOL_FORGETTING)

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Take in one round: `num_accepted` of `num_drafted` tokens were accepted."""
        self._hazards.observe(num_drafted, num_accepted)

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

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Take in one round of this session, for itself and for its pool."""
        if num_drafted == 0:
            return
        self._hazards.observe(num_drafted, num_accepted)
        self._pool.observe(num_drafted, num_accepted)

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
