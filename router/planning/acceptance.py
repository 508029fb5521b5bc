"""How likely draft tokens are to stand, estimated live from censored observations.

Position j of a round is observed only if tokens 1..j-1 stood: what lies behind the first rejection
says nothing. Per position the estimate is a hazard with a forgetting factor, shrunk to a pool of
all sessions of the same task class, which starts from what is known of such tasks. Positions from
`_NUM_POSITIONS` on share one estimate (Kaplan-Meier with a tied tail). Draft model and prompt
lookup are estimated apart, each with pools of its own.
"""

from __future__ import annotations

from collections.abc import Sequence

from models.protocol.messages import DraftSource

_FORGETTING = 0.97  # a session remembers about 33 rounds
_POOL_FORGETTING = 0.995  # a pool, fed by many sessions, about 200
_POOL_WEIGHT = 8.0  # observations a session needs to outweigh its pool
_PRIOR_WEIGHT = 20.0  # observations a pool needs to outweigh its start
_NUM_POSITIONS = 4

# Acceptance per position before anything was observed, by who drafts and task class. Text under a
# grammar is mostly copied or forced, free text at high temperature mostly not. Prompt lookup knows
# no language: its first token stood in 0.3 of the demo pair's extractions, 0.2 of its stories.
INITIAL_ACCEPTANCE: dict[DraftSource, dict[str, float]] = {
    "draft_model": {"structured": 0.85, "free": 0.7, "creative": 0.5},
    "ngram": {"structured": 0.4, "free": 0.3, "creative": 0.15},
}


class _Hazards:
    """Decayed counts of "stood" and "at risk" per position."""

    __slots__ = ("_forgetting", "at_risk", "stood")

    def __init__(self, forgetting: float) -> None:
        self._forgetting = forgetting
        self.at_risk = [0.0] * _NUM_POSITIONS
        self.stood = [0.0] * _NUM_POSITIONS

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        for position in range(min(num_accepted + 1, num_drafted)):
            index = min(position, _NUM_POSITIONS - 1)
            stands = position < num_accepted
            self.at_risk[index] = self._forgetting * self.at_risk[index] + 1.0
            self.stood[index] = self._forgetting * self.stood[index] + stands


class AcceptancePool:
    """What all sessions of one kind of drafter and task class have seen."""

    def __init__(self, task_class: str, source: DraftSource = "draft_model") -> None:
        self._initial = INITIAL_ACCEPTANCE[source][task_class]
        self._hazards = _Hazards(_POOL_FORGETTING)

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Take in one round: `num_accepted` of `num_drafted` tokens stood."""
        self._hazards.observe(num_drafted, num_accepted)

    def acceptance(self, index: int) -> float:
        """Probability that the token at tied position `index` stands, those before standing."""
        hazards = self._hazards
        return (hazards.stood[index] + _PRIOR_WEIGHT * self._initial) / (
            hazards.at_risk[index] + _PRIOR_WEIGHT
        )


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
        """S_1..S_k: probability that at least j tokens of a draft stand. Non-increasing."""
        survival = []
        alive = 1.0
        for position in range(num_draft_tokens):
            index = min(position, _NUM_POSITIONS - 1)
            alive *= (self._hazards.stood[index] + _POOL_WEIGHT * self._pool.acceptance(index)) / (
                self._hazards.at_risk[index] + _POOL_WEIGHT
            )
            survival.append(alive)
        return survival
