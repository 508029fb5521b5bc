"""What rounds cost now, measured while serving and shared by all sessions of a router.

Passes of the target by rows, steps of the draft model by sessions, and what a round waits beyond
them: links, queues, batch forming, the router's own work. Waits are kept apart by kind of round,
because a session whose target goes on alone misses no pass and one that goes out drafting may.
"""

from __future__ import annotations

from models.costs.table import CostTable
from models.protocol.messages import DraftSource, Proposal, Verdict

# Weight of the newest wait in its running value. Sessions that are out of step wait long for each
# other, which is no reason to draft otherwise: a wait counts by what it is when things go well.
_RISE, _FALL = 0.01, 0.1
_AGEING = 0.03


class PassCosts:
    """Running measurements. A draft of prompt lookup costs neither steps nor waits."""

    def __init__(self) -> None:
        self._passes = CostTable()
        self._steps = CostTable()
        self._draft_wait_ms: float | None = None
        self._verify_wait_ms: float | None = None
        self._plain_wait_ms: float | None = None

    def is_known(self, source: DraftSource) -> bool:
        """Whether passes and the steps of this source have been measured."""
        return not self._passes.is_empty and (source == "ngram" or not self._steps.is_empty)

    def observe_pass(self, num_rows: int, pass_ms: float) -> None:
        """Take in one target pass of `num_rows` rows, all sessions together."""
        if num_rows > 0 and pass_ms > 0.0:
            self._passes.observe(num_rows, pass_ms)

    def observe_draft(self, proposal: Proposal, elapsed_ms: float) -> None:
        """Take in one proposal that came after `elapsed_ms`."""
        if proposal.source != "draft_model" or proposal.step_ms <= 0.0:
            return
        self._steps.observe(max(1, proposal.timing.num_sessions), proposal.step_ms)
        wait_ms = max(0.0, elapsed_ms - proposal.timing.pass_ms)
        self._draft_wait_ms = _mean(self._draft_wait_ms, wait_ms)

    def observe_verify(self, verdict: Verdict, elapsed_ms: float, num_drafted: int) -> None:
        """Take in the first verdict of a round, `elapsed_ms` after it was asked for."""
        wait_ms = max(0.0, elapsed_ms - verdict.timing.pass_ms)
        if num_drafted > 0:
            self._verify_wait_ms = _mean(self._verify_wait_ms, wait_ms)
        else:
            self._plain_wait_ms = _mean(self._plain_wait_ms, wait_ms)

    def age_waits(self) -> None:
        """Believe a little less in the waits of rounds with a draft: none were measured lately."""
        if self._verify_wait_ms is not None:
            self._verify_wait_ms *= 1.0 - _AGEING
        if self._draft_wait_ms is not None:
            self._draft_wait_ms *= 1.0 - _AGEING

    def pass_ms(self, num_rows: float) -> float:
        """Expected time of a target pass of so many rows."""
        return self._passes.at(num_rows)

    def step_ms(self, num_sessions: float) -> float:
        """Expected time of a draft step for so many sessions."""
        return self._steps.at(num_sessions)

    @property
    def draft_wait_ms(self) -> float:
        """From asking the draft model to having its draft, beyond its steps."""
        return self._draft_wait_ms or 0.0

    @property
    def verify_wait_ms(self) -> float:
        """From asking for a draft's verdict to having it, beyond the pass."""
        return _either(self._verify_wait_ms, self._plain_wait_ms)

    @property
    def plain_wait_ms(self) -> float:
        """The same for the first token of a round without a draft."""
        return _either(self._plain_wait_ms, self._verify_wait_ms)


def _mean(mean: float | None, value: float) -> float:
    if mean is None:
        return value
    return mean + (_RISE if value > mean else _FALL) * (value - mean)


def _either(mean: float | None, other: float | None) -> float:
    return mean if mean is not None else other or 0.0
