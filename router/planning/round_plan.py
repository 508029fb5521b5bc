"""What one round of a session is to do, also when the draft it was to have does not come."""

from __future__ import annotations

from dataclasses import dataclass

PLAIN_STEPS = (8, 32)  # how far the target goes on alone when k = 0 was chosen: first, at most


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Draft `num_draft_tokens`, have them verified, then go on alone for `run_on` steps.

    `num_shadow_tokens`: have so many drafted beside the plain steps, to compare and not to use.
    `predicted_ms`: expected time of a round with a draft; 0.0: not known. `is_typical`: what the
    round waits for is what rounds of this kind wait for. No: by plan others take longer than it
    does, or sessions have yet to come into step. `min_survival`: a token that costs no step,
    of text that is copied or forced, is worth a row of the pass if it survives with at least that.
    """

    num_draft_tokens: int
    run_on: int
    num_shadow_tokens: int = 0
    predicted_ms: float = 0.0
    is_typical: bool = True
    min_survival: float = 0.0


class Misses:
    """Plans in place of those whose draft did not come or was empty.

    The target goes on alone, a step further after every second miss (1, 1, 2, 2, 3, ... steps):
    where nothing ever matches, a round comes to cost what it costs without a drafter, and where
    there have been matches the next one is noticed soon.
    """

    def __init__(self) -> None:
        self._num_misses = 0  # in a row

    def next_plan(self) -> RoundPlan:
        """The plan of a round after one more miss."""
        run_on = min(1 + self._num_misses // 2, PLAIN_STEPS[0])
        self._num_misses += 1
        return RoundPlan(0, run_on)

    def end(self) -> None:
        """A draft came: the next miss is the first again."""
        self._num_misses = 0
