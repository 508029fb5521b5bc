"""The plan of one round of a session, also for a round whose draft does not come."""

from __future__ import annotations

from enum import Enum

import msgspec

PLAIN_STEPS = (8, 32)  # how far the target goes on alone when k = 0 was chosen: first, at most
_MANY_OWN = 0.2  # tokens a step, accepted of the target's own drafts
_OWN_STEPS = 2  # that it goes on alone after the first miss where it has so many


class Mode(Enum):
    """The mode of the sessions on a target replica."""

    DRAFTING = "drafting"
    PLAIN = "plain"


class Promise(msgspec.Struct, frozen=True):
    """The promise of a common plan for a session's round, or for a token if no session drafts.

    Args:
        num_tokens: that it brings, on average over sessions.
        depth: draft steps.
        engine_ms: what engines take for it.
        round_ms: what it takes altogether.
    """

    num_tokens: float
    depth: int
    engine_ms: float
    round_ms: float


class RoundPlan(msgspec.Struct, frozen=True):
    """Draft `num_draft_tokens`, have them verified, then go on alone for `run_on` steps.

    Args:
        num_draft_tokens: k.
        run_on: plain steps after the verdict on the draft.
        num_shadow_tokens: have so many drafted beside the plain steps, to compare and not to use.
        is_typical: the round is one that the common plan is about, and sessions have been doing
            the same for some rounds.
        is_stretch: it is of the other mode, for a while, to be measured.
        is_missed: a draft was asked for, and none came.
        min_survival: a token that costs no step, of text that is copied or forced, is worth a row
            of the pass if it survives with at least that.
        mode: of the sessions that plan together; None: the round is in no common plan.
        promise: of the plan; None: not known.
        reason: why this k, in a word or two.
    """

    num_draft_tokens: int
    run_on: int
    num_shadow_tokens: int = 0
    is_typical: bool = True
    is_stretch: bool = False
    is_missed: bool = False
    min_survival: float = 0.0
    mode: Mode | None = None
    promise: Promise | None = None
    reason: str = ""

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
        return self.promise.num_tokens / num_tokens


class Misses:
    """Plans in place of those whose draft did not come, was empty, or was not worth its cost.

    The target goes on alone, a step further after every second miss (1, 1, 2, 2, 3, ... steps). If
    nothing ever matches, a round comes to cost the same as without a drafter. If there have been
    matches, the next one is noticed soon. If the target drafts itself and is right, a message costs
    it more and a match brings less. Then it goes twice as far each time.
    """

    def __init__(self) -> None:
        self._num_misses = 0  # since a draft was last right

    def next_plan(self, missed: RoundPlan, num_own_tokens: float = 0.0) -> RoundPlan:
        """Return the plan of a round after one more miss, in place of the plan that was `missed`.

        `num_own_tokens` is the number of the target's own draft tokens that are accepted a step.
        """
        run_on = min(1 + self._num_misses // 2, PLAIN_STEPS[0])
        if num_own_tokens >= _MANY_OWN:
            run_on = min(_OWN_STEPS << min(self._num_misses, 8), PLAIN_STEPS[1])
        self._num_misses += 1
        return RoundPlan(
            0,
            run_on,
            is_typical=missed.is_typical,
            is_stretch=missed.is_stretch,
            is_missed=True,
            mode=missed.mode,
            promise=missed.promise,
            reason="no draft came",
        )

    def end(self) -> None:
        """End the misses, because a draft was right: the next one is the first again."""
        self._num_misses = 0
