"""The plan of one round of a session."""

from __future__ import annotations

from enum import Enum

import msgspec

from router.planning.joint import JointPlan

CONTROL, PROBE = "control", "probe"  # reasons of rounds that are made to be measured


class Mode(Enum):
    """The mode of the sessions on a target replica."""

    DRAFTING = "drafting"
    PLAIN = "plain"


class RoundPlan(msgspec.Struct, frozen=True):
    """Draft `num_draft_tokens`, have them verified, then go on alone for `run_on` steps.

    Args:
        num_draft_tokens: k.
        run_on: plain steps after the verdict on the draft.
        is_typical: the round is one that the common plan is about.
        is_missed: a draft was asked for, and none came.
        min_survival: a token that costs no step, of text that is copied or forced, is worth a row
            of the pass if it survives with at least that.
        mode: that the round is one of; None: the round is in no common plan.
        promise: the common plan; None: not known.
        reason: why this k, in a word or two.
    """

    num_draft_tokens: int
    run_on: int
    is_typical: bool = True
    is_missed: bool = False
    min_survival: float = 0.0
    mode: Mode | None = None
    promise: JointPlan | None = None
    reason: str = ""

    @property
    def is_control(self) -> bool:
        """True if it is made without a draft to be measured, where drafting pays."""
        return self.reason == CONTROL

    @property
    def is_probe(self) -> bool:
        """True if it is made with a draft to be measured, where nobody drafts."""
        return self.reason == PROBE

    def rounds_in(self, num_tokens: int) -> float:
        """Promised rounds in the time of a round that brought `num_tokens`.

        The number of accepted tokens of a draft, and the presence of a requested draft, are chance.
        They are estimated elsewhere (`acceptance`). A round that was to have a draft and did not
        ask for it took as long for less.
        """
        if self.is_missed:
            return 1.0 / num_tokens
        if self.num_draft_tokens > 0 or self.promise is None:
            return 1.0
        return self.promise.tokens_each / num_tokens
