"""How many tokens to draft in the next round: most expected tokens per measured millisecond.

A pass over M rows costs T(M), a draft step d, a round with a draft pays the link to the draft
model on top. k maximises (1 + S_1 + ... + S_k) / (T(rows + k) + k d + links); 0 is a candidate, at
which the target goes on alone and pays its link once in several tokens. All costs are measured
while serving, S comes from `acceptance`; both are kept for each source of drafts, and prompt
lookup costs no step. Each session decides for itself here; a planner that decides for all live
sessions together can take this module's place behind `DraftLengthPolicy`. Formulas: Leviathan et
al. 2211.17192; goodput as in 2406.14066.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from models.messages import DraftSource
from router.acceptance import AcceptanceEstimate

_FORGETTING = 0.98  # about 50 passes of memory
_PROBE_ROUNDS = (4, 64)  # plain rounds between probes while k = 0 pays: first, at most
_PROBE_LENGTH = 2
_STRETCH_EVERY = 8  # rounds; then one token more than is best, or later positions stay unknown
_PLAIN_STEPS_PER_ROUND = 8  # how far a round goes on alone when k = 0 was chosen


@dataclass(frozen=True, slots=True)
class RoundPlan:
    """What one round does: draft `num_draft_tokens`, then go on alone for `run_on` steps."""

    num_draft_tokens: int
    run_on: int


class DraftLengthPolicy(Protocol):
    """Chooses k for one session and one source of drafts, round by round."""

    def plan(self, max_draft_tokens: int) -> RoundPlan:
        """Plan a round with at most `max_draft_tokens` (0: no draft is to be had)."""
        ...

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """Take in the outcome of a round that had a draft."""
        ...


class RoundPlanner:
    """One session's plans: a policy for each source that may draft, and rounds without a draft.

    Args:
        lengths: the policy of each source; empty: nobody drafts.
        run_on: plain steps per round where nobody drafts at all.
    """

    def __init__(self, lengths: Mapping[DraftSource, DraftLengthPolicy], run_on: int) -> None:
        self._lengths = lengths
        self._run_on = run_on
        self._num_misses = 0

    def plan(self, source: DraftSource | None, max_draft_tokens: int) -> RoundPlan:
        """Plan a round that `source` would draft for; None: nobody would."""
        if source is None:
            return RoundPlan(0, self._run_on)
        return self._lengths[source].plan(max_draft_tokens)

    def after_miss(self) -> RoundPlan:
        """The plan in place of one whose draft did not come or is empty.

        The target goes on alone, a step further after every second miss: where nothing ever
        matches, a round comes to cost what it costs without a drafter, and where there have been
        matches the next one is noticed soon.
        """
        run_on = min(1 + self._num_misses // 2, _PLAIN_STEPS_PER_ROUND)
        self._num_misses += 1
        return RoundPlan(0, run_on)

    def observe(self, source: DraftSource, num_drafted: int, num_accepted: int) -> None:
        """Take in the outcome of a round that had a draft."""
        self._num_misses = 0
        self._lengths[source].observe(num_drafted, num_accepted)


class FixedLength:
    """Always k = `num_draft_tokens`, at least 1, where a draft is to be had."""

    def __init__(self, num_draft_tokens: int) -> None:
        self._num_draft_tokens = num_draft_tokens

    def plan(self, max_draft_tokens: int) -> RoundPlan:
        """See `DraftLengthPolicy.plan`."""
        if max_draft_tokens == 0:
            return RoundPlan(0, 1)
        return RoundPlan(min(self._num_draft_tokens, max_draft_tokens), 0)

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """A fixed length learns nothing."""


class PassCosts:
    """Measured costs of target and drafters, shared by all sessions of a router.

    T(M) is a least-squares line through recent passes, never falling in M. A draft of prompt
    lookup is free.
    """

    def __init__(self) -> None:
        self._weight = self._rows = self._rows_squared = 0.0
        self._time = self._rows_time = 0.0
        self._other_rows = 0.0
        self._verify_link_ms = 0.0
        self._draft_link_ms = 0.0
        self._step_ms = 0.0

    def is_known(self, source: DraftSource) -> bool:
        """Whether passes and the steps of this source have been measured."""
        return self._weight > 0.0 and (source == "ngram" or self._step_ms > 0.0)

    def observe_pass(self, num_rows: int, num_own_rows: int, pass_ms: float) -> None:
        """Take in one target pass of `num_rows` rows, `num_own_rows` of them the observer's."""
        self._other_rows += 0.1 * (num_rows - num_own_rows - self._other_rows)
        self._weight = _FORGETTING * self._weight + 1.0
        self._rows = _FORGETTING * self._rows + num_rows
        self._rows_squared = _FORGETTING * self._rows_squared + num_rows * num_rows
        self._time = _FORGETTING * self._time + pass_ms
        self._rows_time = _FORGETTING * self._rows_time + num_rows * pass_ms

    def observe_verify_link(self, link_ms: float) -> None:
        """Take in the message time of one verify and its first verdict."""
        self._verify_link_ms += 0.1 * (link_ms - self._verify_link_ms)

    def observe_draft(self, source: DraftSource, step_ms: float, link_ms: float) -> None:
        """Take in one proposal: the cost of a draft step now, and its message time."""
        if source == "draft_model":
            self._step_ms = step_ms
            self._draft_link_ms += 0.1 * (link_ms - self._draft_link_ms)

    def pass_ms(self, num_own_rows: int) -> float:
        """Expected time of a target pass with `num_own_rows` rows beside those of others."""
        num_rows = num_own_rows + max(self._other_rows, 0.0)
        mean_rows = self._rows / self._weight
        mean_ms = self._time / self._weight
        spread = self._rows_squared / self._weight - mean_rows * mean_rows
        slope = 0.0
        if spread > 1e-6:
            covariance = self._rows_time / self._weight - mean_rows * mean_ms
            slope = max(0.0, covariance / spread)
        return max(mean_ms + slope * (num_rows - mean_rows), 0.1 * mean_ms)

    def draft_ms(self, source: DraftSource, num_draft_tokens: int) -> float:
        """Expected time from asking for a draft to having it."""
        if source == "ngram":
            return 0.0
        return num_draft_tokens * self._step_ms + self._draft_link_ms

    def round_ms(self, source: DraftSource, num_draft_tokens: int) -> float:
        """Expected time of a round with a draft of that length, 1 or more."""
        verify_ms = self.pass_ms(1 + num_draft_tokens) + self._verify_link_ms
        return verify_ms + self.draft_ms(source, num_draft_tokens)

    def plain_ms(self, run_on: int) -> float:
        """Expected time of each token while the target goes on alone for `run_on` steps."""
        return self.pass_ms(1) + self._verify_link_ms / (1 + run_on)


class AdaptiveLength:
    """k by expected tokens per millisecond; probes now and then while 0 is best."""

    def __init__(
        self,
        estimate: AcceptanceEstimate,
        costs: PassCosts,
        max_length: int,
        source: DraftSource = "draft_model",
    ) -> None:
        self._estimate = estimate
        self._costs = costs
        self._max_length = max_length
        self._source = source
        self._plain_rounds = 0
        self._drafting_rounds = 0
        self._probe_gap = _PROBE_ROUNDS[0]

    def plan(self, max_draft_tokens: int) -> RoundPlan:
        """See `DraftLengthPolicy.plan`."""
        limit = min(max_draft_tokens, self._max_length)
        if limit == 0:
            return RoundPlan(0, 1)
        best = self._best_length(limit)
        if best > 0:
            self._plain_rounds = 0
            self._probe_gap = _PROBE_ROUNDS[0]
            self._drafting_rounds += 1
            is_stretched = self._drafting_rounds % _STRETCH_EVERY == 0
            return RoundPlan(min(best + is_stretched, limit), 0)
        self._plain_rounds += 1
        if self._plain_rounds < self._probe_gap:
            return RoundPlan(0, _PLAIN_STEPS_PER_ROUND)
        self._plain_rounds = 0
        self._probe_gap = min(2 * self._probe_gap, _PROBE_ROUNDS[1])
        return RoundPlan(min(_PROBE_LENGTH, limit), 0)

    def observe(self, num_drafted: int, num_accepted: int) -> None:
        """See `DraftLengthPolicy.observe`."""
        self._estimate.observe(num_drafted, num_accepted)

    def _best_length(self, limit: int) -> int:
        survival = self._estimate.survival(limit)
        if not self._costs.is_known(self._source):
            # Before any measurement: draft while a token is more likely to stand than not.
            return max(1, sum(1 for alive in survival if alive > 0.5))
        best_length = 0
        best_rate = 1.0 / self._costs.plain_ms(_PLAIN_STEPS_PER_ROUND)
        expected = 1.0
        for length, alive in enumerate(survival, start=1):
            expected += alive
            cost_ms = self._costs.round_ms(self._source, length)
            if expected / cost_ms > best_rate:
                best_length, best_rate = length, expected / cost_ms
        return best_length
