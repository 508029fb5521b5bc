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

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, Protocol

_MAX_LOOKS = 16_000  # at tokens, for all depths together: some 10 ms of the event loop
_EVERY_DEPTH = 8  # depths up to this one are all looked at in any case
_LEAST_SURVIVAL = 0.05  # that a row is ever spent on; the cost of one is not known that well
_ROUNDING = 1.0 + 1e-9  # sums of the same numbers in another order

_Token = tuple[float, int, int]  # minus its survival, its place in the draft, its session


class Costs(Protocol):
    """What the planner must know of time, ms; `costs.RoundCosts` has it.

    A pass of more rows never takes less time, nor does a step for more sessions.
    """

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
class DraftForecast:
    """What drafting promises for one session.

    `survival[j - 1]` is the probability that at least j draft tokens are accepted, for j up to the
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
    min_survival: float = 1.0  # what a token's survival must be to be worth its row

    def length_of(self, survival: Sequence[float], *, is_free: bool) -> int:
        """k by this plan of a session with such a survival, be it one of those planned for.

        With `depth` 3 and `min_survival` 0.3 a survival of (0.8, 0.5, 0.2) makes k = 2, and one of
        (0.9, 0.8, 0.7, 0.6) makes 3, or 4 where drafts cost no step.
        """
        limit = len(survival) if is_free else min(self.depth, len(survival))
        length = 0
        while length < limit and survival[length] >= self.min_survival:
            length += 1
        return length


def plain_plan(num_sessions: int, costs: Costs, others: Others, run_on: int) -> JointPlan:
    """k = 0 for all: the target goes on alone for `run_on` steps a round."""
    num_rows = num_sessions + others.num_rows
    pass_ms = costs.pass_ms(num_rows)
    token_ms = pass_ms + costs.plain_wait_ms / (1 + run_on)
    rate = num_sessions / token_ms if token_ms > 0.0 else 0.0
    row_price = rate * (costs.pass_ms(num_rows + 1) - pass_ms)
    lengths = (0,) * num_sessions
    return JointPlan(lengths, 0, (1 + run_on) * token_ms, rate, max(row_price, _LEAST_SURVIVAL))


def best_drafting_plan(
    forecasts: Sequence[DraftForecast], costs: Costs, others: Others
) -> JointPlan | None:
    """The best plan that drafts at all; None where no session can or nothing is known of time.

    A and B survive with (0.9, 0.8) and (0.5, 0.2); a pass of r rows takes 20 + 2.5 r ms, a step
    2 ms. Going on alone gives 2 tokens in 25 ms, 0.080 per ms. At depth 2 tokens are admitted in
    the order 0.9, 0.8, 0.5, 0.2; as soon as both draft the rates are

        A 2, B 1: (2 + 0.9 + 0.8 + 0.5) / (32.5 + 2 * 2) = 0.115   the best: k is 2 and 1
        A 2, B 2: (4.2 + 0.2)           / (35.0 + 2 * 2) = 0.113   B's second row is not worth it

    and at depth 1, with A 1 and B 1, (2 + 1.4) / (30 + 2) = 0.106.
    """
    max_depth = max((len(o.survival) for o in forecasts if not o.is_free), default=0)
    rounds = _Rounds(forecasts, costs, others)
    offered: list[_Token] = []
    best: JointPlan | None = None
    covered = -1
    for depth in _depths(max_depth, len(forecasts)):
        offered = sorted(offered + _tokens(forecasts, covered, depth))
        covered = depth
        plan = rounds.best_at(depth, offered)
        if plan is not None and (best is None or plan.tokens_per_ms > best.tokens_per_ms):
            best = plan
    return best


def _depths(max_depth: int, num_sessions: int) -> list[int]:
    """Depths to look at: all; of many sessions with long drafts the first, then steps of a third.

    A look goes over all tokens within the depth, and nobody is served meanwhile. Between two
    depths that far out the best rate changes little.
    """
    if num_sessions * max_depth**2 <= 2 * _MAX_LOOKS:
        return list(range(max_depth + 1))
    depths = list(range(min(max_depth, _EVERY_DEPTH) + 1))
    while depths[-1] < max_depth:
        depths.append(min(max_depth, depths[-1] + depths[-1] // 3))
    return depths


def _tokens(forecasts: Sequence[DraftForecast], above: int, depth: int) -> list[_Token]:
    """Draft tokens that can be there after `depth` steps, and not after `above` (-1: none is)."""
    return [
        (-alive, length, index)
        for index, forecast in enumerate(forecasts)
        if not forecast.is_free or above < 0
        for length, alive in enumerate(forecast.survival, start=1)
        if forecast.is_free or above < length <= depth
    ]


def _within(offered: Sequence[_Token], depth: int, is_free: Sequence[bool]) -> list[_Token]:
    return [token for token in offered if token[1] <= depth or is_free[token[2]]]


class _Curve:
    """A time by number of draft rows; each is asked for once, and only those that are needed."""

    def __init__(self, at: Callable[[int], float]) -> None:
        self._at = at
        self._values: list[float] = []

    def up_to(self, num_rows: int) -> list[float]:
        """The times of 0 to at least `num_rows` draft rows."""
        values = self._values
        while len(values) <= num_rows:
            values.append(self._at(len(values)))
        return values


class _Segment(NamedTuple):
    """What stays the same from row to row, as long as no further session drafts."""

    away_ms: float  # in draft steps
    half_away_ms: float  # the same for half of the sessions
    waits_ms: float
    plain_ms: float  # waited for the end of others' plain passes
    plain_tokens: float  # of sessions without a draft, beyond one for each
    is_whole: bool  # all sessions draft


@dataclass(slots=True)
class _Best:
    rate: float = 0.0
    time_ms: float = 0.0
    num_rows: int = 0


class _Rounds:
    """Times of rounds by number of draft rows and of sessions on the draft model."""

    def __init__(self, forecasts: Sequence[DraftForecast], costs: Costs, others: Others) -> None:
        self._is_free = [forecast.is_free for forecast in forecasts]
        self._num_sessions = len(forecasts)
        plain_rows = self._num_sessions + others.num_rows
        self._pass_ms = _Curve(lambda more: costs.pass_ms(plain_rows + more))
        self._step_ms = [_step_ms(costs, own, others) for own in range(self._num_sessions + 1)]
        self._half_step_ms = [
            _step_ms(costs, own / 2, others) for own in range(self._num_sessions + 1)
        ]
        # Half of our sessions, with all of the others.
        half_rows = self._num_sessions / 2 + others.num_rows
        self._half_pass_ms = _Curve(lambda more: costs.pass_ms(half_rows + more / 2))
        self._apart = min(1.0, max(0.0, 2.0 - 2.0 * others.our_share))
        self._draft_wait_ms = costs.draft_wait_ms
        self._verify_wait_ms = costs.verify_wait_ms
        self._plain_pass_ms = [
            max(costs.pass_ms(own + others.num_rows), 1e-9) if own else 0.0
            for own in range(self._num_sessions + 1)
        ]
        self._num_others = others.num_sessions

    def best_at(self, depth: int, offered: Sequence[_Token]) -> JointPlan | None:
        """Find the best number of tokens to admit with `depth` draft steps.

        `offered` are the tokens that can be there then, the likeliest first: a session's first
        token comes before its others.
        """
        is_free = self._is_free
        best = _Best()
        # Between two first tokens of sessions the same ones draft, and only the rows differ: these
        # are the segments that `_scan` walks through.
        firsts = [at for at, (_, length, _) in enumerate(offered) if length == 1]
        expected, num_away = float(self._num_sessions), 0
        for num_drafted, (start, stop) in enumerate(pairwise([*firsts, len(offered)]), start=1):
            num_away += not is_free[offered[start][2]]
            segment = self._segment(depth, num_drafted, num_away)
            expected = self._scan(offered[start:stop], start, segment, expected, best)
        if best.num_rows == 0 or best.time_ms <= 0.0:
            return None
        lengths = [0] * self._num_sessions
        for _, length, index in offered[: best.num_rows]:
            lengths[index] = length
        deepest = max((k for k, free in zip(lengths, is_free, strict=True) if not free), default=0)
        if depth > _EVERY_DEPTH and deepest < depth:  # nobody looks there else
            return self.best_at(deepest, _within(offered, deepest, is_free))
        price = self._min_survival(offered, best)
        return JointPlan(tuple(lengths), deepest, best.time_ms, best.rate, price)

    def _min_survival(self, offered: Sequence[_Token], best: _Best) -> float:
        """The survival that parts what was admitted from what was not.

        Between the two it is what a row costs at the plan's rate: where all that was offered was
        admitted, that alone says what a further token would have to be worth.
        """
        num_rows = best.num_rows
        last = -offered[num_rows - 1][0]
        following = -offered[num_rows][0] if num_rows < len(offered) else 0.0
        pass_ms = self._pass_ms.up_to(num_rows + 1)
        row_price = best.rate * (pass_ms[num_rows + 1] - pass_ms[num_rows])
        return min(last, max(row_price, (last + following) / 2, _LEAST_SURVIVAL))

    def _segment(self, depth: int, num_drafted: int, num_away: int) -> _Segment:
        """`num_drafted` sessions have a draft, `num_away` of them from the draft model.

        The rest go on alone, pass after pass, and those that draft wait for the end of one, on
        average half of it.
        """
        waits_ms = self._verify_wait_ms
        away_ms = half_away_ms = 0.0
        if num_away:
            waits_ms += self._draft_wait_ms
            away_ms = depth * self._step_ms[num_away]
            half_away_ms = depth * self._half_step_ms[num_away]
        num_plain = self._num_sessions - num_drafted
        if num_plain == 0:
            return _Segment(away_ms, half_away_ms, waits_ms, 0.0, 0.0, is_whole=True)
        plain_ms = self._plain_pass_ms[num_plain]
        more_tokens = num_plain * (0.5 + (away_ms + waits_ms) / plain_ms)
        return _Segment(
            away_ms, half_away_ms, waits_ms, 0.5 * plain_ms, more_tokens, is_whole=False
        )

    def _scan(
        self,
        tokens: Sequence[_Token],
        num_before: int,
        segment: _Segment,
        expected: float,
        best: _Best,
    ) -> float:
        """Admit `tokens` after `num_before` others, one by one; return the tokens expected then."""
        last = num_before + len(tokens)
        pass_ms = self._pass_ms.up_to(last)
        first_ms = pass_ms[0]
        apart_ms = self._apart_ms(segment, last)
        hope = expected - sum(token[0] for token in tokens)
        for num_rows, (minus_alive, _, _) in enumerate(tokens, start=num_before + 1):
            expected -= minus_alive
            rows_ms = pass_ms[num_rows]
            time_ms = rows_ms + segment.away_ms + segment.waits_ms + segment.plain_ms
            if apart_ms:
                time_ms -= self._apart * max(0.0, time_ms - apart_ms[num_rows])
            lost = self._num_others * (rows_ms - first_ms) / max(first_ms, 1e-9)
            rate = (expected + segment.plain_tokens - lost) / max(time_ms, 1e-9)
            if rate > best.rate:
                best.rate, best.time_ms, best.num_rows = rate, time_ms, num_rows
            elif segment.is_whole and hope * _ROUNDING - lost <= best.rate * time_ms:
                break  # more rows are never faster, and all that is left to gain would not do
        return expected

    def _apart_ms(self, segment: _Segment, num_rows: int) -> list[float]:
        """Times of a round by rows where two halves go in turn; empty: they never do.

        All are in one pass, or one half drafts while the other is verified. Engines bring sessions
        together where that is better (`models.scheduler.batch_window`); they do not part them where
        it is not, so how often they are apart then is measured.
        """
        if not segment.is_whole or self._num_sessions < 2 or self._apart == 0.0:
            return []
        away_ms, waits_ms = segment.half_away_ms, segment.waits_ms
        return [
            max(2.0 * half_ms, half_ms + away_ms + waits_ms)
            for half_ms in self._half_pass_ms.up_to(num_rows)
        ]


def _step_ms(costs: Costs, num_own: float, others: Others) -> float:
    return costs.step_ms(max(1.0, num_own + others.num_drafting))
