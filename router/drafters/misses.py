"""Plans of rounds whose draft does not come."""

from __future__ import annotations

import msgspec

from router.planning.round_plan import RoundPlan

_NO_DRAFT = "no draft came"
_STEPS = (8, 32)  # most steps that the target goes on alone; where it drafts itself
_MANY_OWN = 0.2  # tokens a step, accepted of the target's own drafts
_OWN_STEPS = 2  # that it goes on alone after the first miss where it has so many


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
        if missed.is_probe:  # the target goes on alone there, as if nobody had been asked
            return msgspec.structs.replace(
                missed, num_draft_tokens=0, is_missed=True, reason=_NO_DRAFT
            )
        run_on = min(1 + self._num_misses // 2, _STEPS[0])
        if num_own_tokens >= _MANY_OWN:
            run_on = min(_OWN_STEPS << min(self._num_misses, 8), _STEPS[1])
        self._num_misses += 1
        return RoundPlan(
            0,
            run_on,
            is_typical=missed.is_typical,
            is_missed=True,
            mode=missed.mode,
            promise=missed.promise,
            reason=_NO_DRAFT,
        )

    def end(self) -> None:
        """End the misses, because a draft was right: the next one is the first again."""
        self._num_misses = 0
