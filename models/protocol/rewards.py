"""Rewards as they cross process borders: a question about texts, its answer. Needs msgspec only.

A `RewardScore` has all inputs of its answer. So nothing is opened or kept for a session, and a
repeat is answered anew, with the same scores.
"""

from __future__ import annotations

import msgspec

from models.protocol.parts import OfSession, Reply


class RewardScore(OfSession, frozen=True, kw_only=True, tag="reward_score"):
    """Score `text` with each of the look-aheads behind it, none of which may be there: "".

    `reward` is the JSON text of what the request says: an object whose `kind` names the reward.
    `ends[i]`: nothing can follow look-ahead i.
    """

    seq: int
    reward: str
    text: str
    lookaheads: list[str]
    ends: list[bool]


class TextScore(msgspec.Struct, frozen=True, array_like=True):
    """The score of one text; see `models.rewards.reward.Scored`."""

    score: float
    is_met: bool
    can_be_met: bool

    @property
    def value(self) -> float:
        """The value of going on: 0 if the constraint cannot be met any more."""
        return self.score if self.can_be_met else 0.0


class RewardScored(Reply, frozen=True, kw_only=True, tag="reward_scored"):
    """The scores, in the order of the look-aheads."""

    scores: list[TextScore]


class RewardRefused(Reply, frozen=True, kw_only=True, tag="reward_refused"):
    """There are no scores. `is_client_error` False: ask again, or another replica."""

    message: str
    is_client_error: bool
