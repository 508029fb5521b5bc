"""Decides which drafts of CDSL are kept: by the paper's rule, or by ours that keeps gains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from models.protocol.messages import Verdict
from models.protocol.rewards import TextScore
from router.types import LookaheadSettings

Kept = Literal["all", "gain", "nothing"]


def share_accepted(draft: Sequence[int], verdict: Verdict) -> float:
    """Share of the draft that stands. An eos that was foreseen comes back as the target's token."""
    num_right = verdict.num_accepted
    num_right += num_right < len(draft) and draft[num_right] == verdict.token
    return num_right / len(draft)


def stands_enough(settings: LookaheadSettings, share: float) -> bool:
    """Return whether a >= a_t: either rule judges only such a draft by its reward."""
    return share >= settings.accept_threshold


def kept_by_paper(settings: LookaheadSettings, score: TextScore) -> Kept:
    """Keep all if r >= r_t, else nothing.

    r is the reward's score itself.
    """
    return "all" if score.score >= settings.reward_threshold else "nothing"


def kept_by_gain(settings: LookaheadSettings, before: TextScore, score: TextScore) -> Kept:
    """Decide like the paper, but for two cases.

    - Below r_t what earns more than the text without it is kept, as far as it gains.
    - A draft that loses the constraint for good is not kept, whatever it scores. Once the
      constraint is lost there is nothing to earn, and all is kept.
    """
    if not score.can_be_met:
        return "nothing" if before.can_be_met else "all"
    if score.score >= settings.reward_threshold:
        return "all"
    return "gain" if score.score > before.score else "nothing"
