"""Limits of one session: of every wait, of attempts to replace a lost part, and of drafting.

Plain values; what they mean for a running session is in `recovery`, `exchange` and
`drafters.choice`.
"""

from __future__ import annotations

from dataclasses import dataclass

from models.backoff import Backoff

_LONGEST_PAUSE = 8  # times the first pause


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionLimits:
    """Limits of every wait on another process, in seconds, and of losses in a row."""

    lease_timeout_s: float = 10.0  # for the first lease on a replica
    failover_timeout_s: float = 60.0  # for another replica once a session has lost its own
    max_losses: int = 6  # replicas lost in a row without any answer between; then it ends
    first_answer_timeout_s: float = 60.0  # the first answer of a lease includes the prefill
    answer_timeout_s: float = 20.0  # an engine silent for longer counts as dead
    queue_timeout_s: float = 300.0  # for one answer that will come, while nothing is done for it
    propose_timeout_s: float = 1.0  # a draft later than this is not worth waiting for
    resend_interval_s: float = 2.0
    rejoin_interval_s: float = 0.5  # first pause between attempts to replace a lost part

    def backoff(self) -> Backoff:
        """The pauses between attempts to replace one part."""
        return Backoff(self.rejoin_interval_s, _LONGEST_PAUSE * self.rejoin_interval_s)


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationLimits:
    """What the operator allows. `num_speculative_tokens` None: k is chosen live."""

    enabled: bool = True
    num_speculative_tokens: int | None = None
    max_speculative_tokens: int = 8
    run_on_tokens: int = 32  # steps the target goes on alone where no draft is wanted at all
    method: str | None = None  # who drafts, by name; None: the first drafter that is available
    prompt_lookup_min: int = 1  # shortest n-gram that prompt lookup matches
    prompt_lookup_max: int = 4  # longest; 0: no prompt lookup at all
