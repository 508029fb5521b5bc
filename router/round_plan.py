"""What one round of a session is to do: the answer of every draft length policy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Draft `num_draft_tokens`, have them verified, then go on alone for `run_on` steps.

    `num_shadow_tokens`: have so many drafted beside the plain steps, to compare and not to use.
    `predicted_ms`: expected time of a round with a draft; 0.0: not known. `is_deepest`: no other
    draft of the same plan takes longer, so the round waits for nobody by plan.
    """

    num_draft_tokens: int
    run_on: int
    num_shadow_tokens: int = 0
    predicted_ms: float = 0.0
    is_deepest: bool = True
