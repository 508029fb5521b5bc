"""What one round of a session is to do, also when the draft it was to have does not come."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

PLAIN_STEPS = (8, 32)  # how far the target goes on alone when k = 0 was chosen: first, at most


class Mode(Enum):
    """What the sessions on a target replica do together."""

    DRAFTING = "drafting"
    PLAIN = "plain"


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Draft `num_draft_tokens`, have them verified, then go on alone for `run_on` steps.

    Args:
        num_draft_tokens: k.
        run_on: plain steps after the verdict on the draft.
        num_shadow_tokens: have so many drafted beside the plain steps, to compare and not to use.
        is_typical: what the round waits for is what rounds of this kind wait for. No: by plan
            others take longer than it does, or sessions have yet to come into step.
        is_settled: sessions have been doing the same for some rounds.
        min_survival: a token that costs no step, of text that is copied or forced, is worth a row
            of the pass if it survives with at least that.
        mode: of the sessions that plan together; None: the round is in no common plan.
        tokens_per_ms: what the plan promises of each of these sessions; 0.0: not known.
        expected_tokens: of the round, its draft's by their survival; 0.0: not known.
        reason: why this k, in a word or two.
    """

    num_draft_tokens: int
    run_on: int
    num_shadow_tokens: int = 0
    is_typical: bool = True
    is_settled: bool = True
    min_survival: float = 0.0
    mode: Mode | None = None
    tokens_per_ms: float = 0.0
    expected_tokens: float = 0.0
    reason: str = ""


class Misses:
    """Plans in place of those whose draft did not come or was empty.

    The target goes on alone, a step further after every second miss (1, 1, 2, 2, 3, ... steps):
    where nothing ever matches, a round comes to cost what it costs without a drafter, and where
    there have been matches the next one is noticed soon.
    """

    def __init__(self) -> None:
        self._num_misses = 0  # in a row

    def next_plan(self, missed: RoundPlan) -> RoundPlan:
        """The plan of a round after one more miss, in place of the plan that was `missed`."""
        run_on = min(1 + self._num_misses // 2, PLAIN_STEPS[0])
        self._num_misses += 1
        return RoundPlan(
            0, run_on, mode=missed.mode, tokens_per_ms=missed.tokens_per_ms, reason="no draft came"
        )

    def end(self) -> None:
        """A draft came: the next miss is the first again."""
        self._num_misses = 0
