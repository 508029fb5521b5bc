"""What one round of a session is to do: the answer of every draft length policy."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """Draft `num_draft_tokens`, have them verified, then go on alone for `run_on` steps.

    `num_shadow_tokens`: have so many drafted beside the plain steps, to compare and not to use.
    `predicted_ms`: expected time of a round with a draft; 0.0: not known. `is_typical`: what the
    round waits for is what rounds of this kind wait for. No: by plan others take longer than it
    does, or sessions have yet to come into step.
    """

    num_draft_tokens: int
    run_on: int
    num_shadow_tokens: int = 0
    predicted_ms: float = 0.0
    is_typical: bool = True
