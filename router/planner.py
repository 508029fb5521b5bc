"""Draft lengths of all live sessions together: most expected tokens per millisecond of their round.

A round of n sessions drafts `depth` steps, which all of them share, and verifies all drafts in one
pass. For every depth, draft tokens are admitted by falling survival: that order is best for any
number of rows, and keeps drafts whole because survival never rises along a draft. Each prefix of
it is scored,

    (tokens of the round - tokens others lose) / (pass(rows) + depth * step(sessions) + waits)

and compared with going on without drafts. Rows that other routers send are in the pass with ours;
what our drafts add to its time delays their tokens, and that is taken off.

Pure functions of survival and costs. Goodput as in SmartSpec (2406.14066), rows by survival as in
D-Cut (2607.14647); depth as a cost shared by all of a batch is our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol


class Costs(Protocol):
    """What the planner must know of time, ms; `pass_costs.PassCosts` measures it."""

    def pass_ms(self, num_rows: float) -> float:
        """A target pass of so many rows."""
        ...

    def step_ms(self, num_sessions: float) -> float:
        """A draft step for so many sessions."""
        ...

    @property
    def draft_wait_ms(self) -> float:
        """Waits of a round for the draft model, beyond its steps."""
        ...

    @property
    def verify_wait_ms(self) -> float:
        """Waits of a round with a draft for the target, beyond the pass."""
        ...

    @property
    def plain_wait_ms(self) -> float:
        """The same for the first token of a round without a draft."""
        ...


@dataclass(frozen=True, slots=True)
class Outlook:
    """What drafting promises for one session.

    `survival[j - 1]` is the probability that at least j draft tokens stand, for j up to the
    longest draft allowed; empty: no draft is to be had. `is_free`: drafts cost no step.
    """

    survival: Sequence[float]
    is_free: bool = False


@dataclass(frozen=True, slots=True)
class Others:
    """The load of other routers, and of our sessions that are not planned, on the same engines."""

    num_sessions: float = 0.0  # of theirs in a target pass
    num_rows: float = 0.0
    num_drafting: float = 0.0  # of theirs in a draft step; negative: ours are on several drafters
    our_share: float = (
        1.0  # of our sessions in a pass, while all draft: 0.5 where halves take turns
    )


@dataclass(frozen=True, slots=True)
class JointPlan:
    """k of each session, in order, and what is expected of the round."""

    lengths: tuple[int, ...]
    depth: int  # draft steps until the last draft is there
    round_ms: float  # 0.0: nothing was measured yet
    tokens_per_ms: float


def plain_plan(num_sessions: int, costs: Costs, others: Others, run_on: int) -> JointPlan:
    """k = 0 for all: the target goes on alone for `run_on` steps a round."""
    token_ms = costs.pass_ms(num_sessions + others.num_rows) + costs.plain_wait_ms / (1 + run_on)
    rate = num_sessions / token_ms if token_ms > 0.0 else 0.0
    return JointPlan((0,) * num_sessions, 0, (1 + run_on) * token_ms, rate)


def best_drafting_plan(
    outlooks: Sequence[Outlook], costs: Costs, others: Others
) -> JointPlan | None:
    """The best plan that drafts at all; None where no session can or nothing is known of time."""
    tokens = sorted(
        (-alive, length, index)
        for index, outlook in enumerate(outlooks)
        for length, alive in enumerate(outlook.survival, start=1)
    )
    max_depth = max((len(o.survival) for o in outlooks if not o.is_free), default=0)
    rounds = _Rounds(outlooks, costs, others, len(tokens))
    found = [
        best
        for depth in range(max_depth + 1)
        if (best := rounds.best_at(depth, tokens)) is not None
    ]
    return max(found, key=lambda plan: plan.tokens_per_ms, default=None)


class _Round(NamedTuple):
    time_ms: float
    plain_tokens: float  # of sessions without a draft, beyond one for each


class _Rounds:
    """Times of rounds by number of draft rows and of sessions on the draft model."""

    def __init__(
        self, outlooks: Sequence[Outlook], costs: Costs, others: Others, max_draft_rows: int
    ) -> None:
        self._outlooks = outlooks
        self._num_sessions = len(outlooks)
        plain_rows = self._num_sessions + others.num_rows
        self._pass_ms = [costs.pass_ms(plain_rows + more) for more in range(max_draft_rows + 1)]
        self._step_ms = [_step_ms(costs, own, others) for own in range(self._num_sessions + 1)]
        self._half_step_ms = [
            _step_ms(costs, own / 2, others) for own in range(self._num_sessions + 1)
        ]
        # Half of our sessions, with all of the others.
        half_rows = self._num_sessions / 2 + others.num_rows
        self._half_pass_ms = [
            costs.pass_ms(half_rows + more / 2) for more in range(max_draft_rows + 1)
        ]
        self._apart = min(1.0, max(0.0, 2.0 - 2.0 * others.our_share))
        self._draft_wait_ms = costs.draft_wait_ms
        self._verify_wait_ms = costs.verify_wait_ms
        self._plain_pass_ms = [
            max(costs.pass_ms(own + others.num_rows), 1e-9) if own else 0.0
            for own in range(self._num_sessions + 1)
        ]
        plain_ms = max(self._pass_ms[0], 1e-9)
        self._others_lose = [
            others.num_sessions * (pass_ms - self._pass_ms[0]) / plain_ms
            for pass_ms in self._pass_ms
        ]

    def _round(self, num_rows: int, depth: int, num_drafted: int, num_away: int) -> _Round:
        """Time of a round of `num_rows` draft rows, and plain tokens beside one for each session.

        `num_drafted` sessions have a draft, `num_away` of them from the draft model. The rest go on
        alone, pass after pass, and those that draft wait for the end of one, on average half of it.
        """
        waits_ms = self._verify_wait_ms
        away_ms = half_away_ms = 0.0
        if num_away:
            waits_ms += self._draft_wait_ms
            away_ms = depth * self._step_ms[num_away]
            half_away_ms = depth * self._half_step_ms[num_away]
        together_ms = self._pass_ms[num_rows] + away_ms + waits_ms
        num_plain = self._num_sessions - num_drafted
        if num_plain:
            plain_ms = self._plain_pass_ms[num_plain]
            more_passes = 0.5 + (away_ms + waits_ms) / plain_ms
            return _Round(together_ms + 0.5 * plain_ms, num_plain * more_passes)
        if self._num_sessions < 2:
            return _Round(together_ms, 0.0)
        # All in one pass, or two halves in turn, one drafting while the other is verified. Engines
        # bring sessions together where that is better (`models.forming`); they do not part them
        # where it is not, so how often they are apart then is measured.
        half_ms = self._half_pass_ms[num_rows]
        apart_ms = max(2.0 * half_ms, half_ms + half_away_ms + waits_ms)
        gain_ms = max(0.0, together_ms - apart_ms)
        return _Round(together_ms - self._apart * gain_ms, 0.0)

    def best_at(self, depth: int, tokens: list[tuple[float, int, int]]) -> JointPlan | None:
        """The best number of tokens to admit with `depth` draft steps."""
        is_free = [outlook.is_free for outlook in self._outlooks]
        admitted: list[tuple[int, int]] = []
        expected, num_drafted, num_away = float(self._num_sessions), 0, 0
        best_rate, best_ms, best_rows = 0.0, 0.0, 0
        for minus_alive, length, index in tokens:
            if length > depth and not is_free[index]:
                continue
            if length == 1:
                num_drafted += 1
                num_away += not is_free[index]
            expected -= minus_alive
            admitted.append((index, length))
            num_rows = len(admitted)
            planned = self._round(num_rows, depth, num_drafted, num_away)
            num_tokens = expected + planned.plain_tokens - self._others_lose[num_rows]
            rate = num_tokens / max(planned.time_ms, 1e-9)
            if rate > best_rate:
                best_rate, best_ms, best_rows = rate, planned.time_ms, num_rows
        if best_rows == 0 or best_ms <= 0.0:
            return None
        lengths = [0] * self._num_sessions
        for index, length in admitted[:best_rows]:
            lengths[index] = length
        deepest = max((k for k, free in zip(lengths, is_free, strict=True) if not free), default=0)
        return JointPlan(tuple(lengths), deepest, best_ms, best_rate)


def _step_ms(costs: Costs, num_own: float, others: Others) -> float:
    return costs.step_ms(max(1.0, num_own + others.num_drafting))
