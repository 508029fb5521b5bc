"""Draft lengths of all live sessions together: most expected tokens per millisecond of their round.

If drafts pay, all sessions draft side by side. They share `depth` draft steps, and one pass
verifies all drafts. Each session that can draft has its first token verified. The other tokens
within a depth are admitted by falling survival. That order is best for any number of rows, and
keeps drafts whole because survival never rises along a draft. Each prefix of it is scored,

    (tokens of the round - tokens others lose) / (pass(rows) + draft(depth, sessions) + overhead)

or, for the share of rounds in which two halves of the sessions take turns, by their time. A text's
first and last rounds bring fewer tokens than those between. The loss grows with depth. Rows that
other routers send are in the pass with ours. The time that our drafts add delays their tokens.

Goodput is that of SmartSpec (2406.14066), and rows by survival are those of D-Cut (2607.14647).
Depth as a cost that the whole batch shares is our own.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

_EVERY_DEPTH = 8  # depths up to this one are all looked at in any case
_LEAST_SURVIVAL = 0.05  # that a row is ever spent on; the cost of one is not known that well
_LEAST_SHARE = 0.1  # least part of the engines' work that a round takes
# Lost rounds of a text with drafts, on average: room for the last draft ends before the draft does.
_LOST_ROUNDS = 0.5
_ROUNDING = 1.0 + 1e-9  # sums of the same numbers in another order

_Token = tuple[float, int, int]  # minus its survival, its place in the draft, its session


class Costs(Protocol):
    """The times of engines, ms; `costs.RoundCosts` has it.

    A pass of more rows never takes less time, nor does a draft for more sessions or a deeper one.
    """

    def pass_ms(self, num_rows: float) -> float:
        """Return the time of a target pass of so many rows."""
        ...

    def draft_ms(self, depth: float, num_sessions: float) -> float:
        """Return the time that drafts of so many tokens are waited for, by so many sessions.

        It is that of all their steps, unless some are made ahead.
        """
        ...


@dataclass(frozen=True, slots=True)
class DraftForecast:
    """The prediction for drafts of one session.

    `survival[j - 1]` is the probability that at least j draft tokens are accepted. j goes up to the
    longest draft allowed. `survival` is empty if no draft can be had. `is_free`: drafts cost no
    step. `presence` is the share of planned drafts that arrive. The session's draft has rows in
    those passes only.
    """

    survival: Sequence[float]
    is_free: bool = False
    presence: float = 1.0


@dataclass(frozen=True, slots=True)
class Others:
    """The load of other routers, and of our sessions that are not planned, on the same engines."""

    num_sessions: float = 0.0  # theirs in a target pass
    num_rows: float = 0.0
    num_drafting: float = 0.0  # theirs in a draft step; negative: ours are on several drafters
    our_share: float = 1.0  # part of ours in a pass, while all draft; 0.5: halves take turns


class Work(NamedTuple):
    """The work of engines in a round of ours: draft rows beside a row for each session, steps."""

    num_sessions: float = 1.0
    num_draft_rows: float = 0.0
    num_drafting: float = 0.0  # sessions that draft steps are made for
    depth: float = 0.0


_NO_WORK = Work()


@dataclass(frozen=True, slots=True)
class JointPlan:
    """k of each session, in order, and what is expected of the round.

    `tokens_per_ms` is of whole texts; `num_tokens` of a round, all sessions together.
    """

    lengths: tuple[int, ...]
    depth: int  # draft steps until the last draft is there
    engine_ms: float  # engines' work in a round, or for a token if no session drafts
    overhead_ms: float  # the same beyond that
    tokens_per_ms: float
    num_tokens: float
    work: Work = _NO_WORK  # that the round has the engines do
    min_survival: float = 1.0  # least survival of a token that is worth its row

    @property
    def round_ms(self) -> float:
        """The expected time of a round."""
        return _round_ms(self.engine_ms, self.overhead_ms)

    @property
    def tokens_each(self) -> float:
        """The expected tokens of a session's round."""
        return self.num_tokens / len(self.lengths)

    def length_of(self, survival: Sequence[float], *, is_free: bool) -> int:
        """Return k by this plan for a session with such a survival, planned for or not.

        Let `depth` be 3 and `min_survival` 0.3. A survival of (0.8, 0.5, 0.2) makes k = 2. One of
        (0.9, 0.8, 0.7, 0.6) makes 3, or 4 if drafts cost no step. One of (0.2, 0.1) makes 1, so
        that the session stays in step.
        """
        limit = len(survival) if is_free else min(self.depth, len(survival))
        length = min(1, limit)
        while length < limit and survival[length] >= self.min_survival:
            length += 1
        return length


def plain_plan(num_sessions: int, costs: Costs, others: Others, overhead_ms: float) -> JointPlan:
    """Return the plan with k = 0 for all; a token takes `overhead_ms` beyond the pass."""
    num_rows = num_sessions + others.num_rows
    pass_ms = costs.pass_ms(num_rows)
    rate = num_sessions / _round_ms(pass_ms, overhead_ms)
    row_price = rate * (costs.pass_ms(num_rows + 1) - pass_ms)
    lengths = (0,) * num_sessions
    min_survival = max(row_price, _LEAST_SURVIVAL)
    work = Work(num_sessions)
    return JointPlan(lengths, 0, pass_ms, overhead_ms, rate, num_sessions, work, min_survival)


def best_drafting_plan(
    forecasts: Sequence[DraftForecast],
    costs: Costs,
    others: Others,
    overhead_ms: float,
    text_tokens: float = math.inf,
) -> JointPlan | None:
    """Return the best plan that drafts; None if no session can draft or no time is known.

    `text_tokens` is the length of texts.

    For example, sessions A and B have survivals of (0.9, 0.8) and (0.5, 0.2). A pass of r rows
    takes 20 + 2.5 r ms, a step 2 ms. Both without drafts get 2 tokens in 25 ms, 0.080 per ms. Their
    rates with drafts are

        A 1, B 1: (2 + 0.9 + 0.5)       / (30.0 + 2)     = 0.106
        A 2, B 1: (2 + 0.9 + 0.5 + 0.8) / (32.5 + 2 * 2) = 0.115   the best: k is 2 and 1
        A 2, B 2: (4.2 + 0.2)           / (35.0 + 2 * 2) = 0.113   B's second row is not worth it
    """
    limits = [len(o.survival) for o in forecasts if o.survival and not o.is_free]
    rounds = _Rounds(forecasts, costs, others, overhead_ms, text_tokens)
    if not rounds.can_draft:
        return None
    offered: list[_Token] = []
    best: JointPlan | None = None
    covered = 0
    for depth in _depths(max(limits, default=0)):
        offered = sorted(offered + _tokens(forecasts, covered, depth))
        covered = max(1, depth)
        plan = rounds.best_at(depth, offered)
        if best is None or plan.tokens_per_ms > best.tokens_per_ms:
            best = plan
    return best


def _round_ms(engine_ms: float, overhead_ms: float) -> float:
    """Return the time of a round, which is never 0, even if the overhead is negative.

    An overhead that was measured at other times or for other numbers of sessions may be.
    """
    return max(engine_ms + overhead_ms, _LEAST_SHARE * engine_ms, 1e-9)


def _depths(max_depth: int) -> list[int]:
    """Return the depths to look at: the first of them all, then steps of a third.

    A look goes over all tokens within the depth, and no session is served meanwhile. The best rate
    changes little between two depths that far out.
    """
    depths = list(range(1, min(max_depth, _EVERY_DEPTH) + 1)) or [0]
    while depths[-1] < max_depth:
        depths.append(min(max_depth, depths[-1] + depths[-1] // 3))
    return depths


def _tokens(forecasts: Sequence[DraftForecast], above: int, depth: int) -> list[_Token]:
    """Return tokens behind the first that `depth` steps can make and `above` steps cannot."""
    return [
        (-alive, length, index)
        for index, forecast in enumerate(forecasts)
        if not forecast.is_free or above == 0
        for length, alive in enumerate(forecast.survival, start=1)
        if length > 1 and (forecast.is_free or above < length <= depth)
    ]


class _Curve:
    """A time by number of draft rows; each value is asked for once, and only if it is needed.

    It is straight between two numbers.
    """

    def __init__(self, at: Callable[[int], float]) -> None:
        self._at = at
        self._values: list[float] = []

    def at(self, num_rows: float) -> float:
        """Return the time of so many draft rows."""
        below = int(num_rows)
        values = self._values
        while len(values) <= below + 1:
            values.append(self._at(len(values)))
        return values[below] + (num_rows - below) * (values[below + 1] - values[below])


class EngineTimes:
    """The engines' time for a round of `num_sessions` of ours, for `num_drafting` of them steps."""

    def __init__(
        self, costs: Costs, others: Others, num_sessions: float, num_drafting: float
    ) -> None:
        plain_rows = num_sessions + others.num_rows
        self.pass_ms = _Curve(lambda more: costs.pass_ms(plain_rows + more))
        half_rows = num_sessions / 2 + others.num_rows  # half of ours, with all of the others
        self._half_pass_ms = _Curve(lambda more: costs.pass_ms(half_rows + more / 2))
        self._costs = costs
        self._num_drafting = max(1.0, num_drafting + others.num_drafting)
        self._num_half = max(1.0, num_drafting / 2 + others.num_drafting)
        self._is_drafting = num_drafting > 0
        self._draft_ms = (0.0, 0.0, 0.0)  # of the newest depth: all together, half
        is_one = num_drafting <= 1
        self._apart = 0.0 if is_one else min(1.0, max(0.0, 2.0 - 2.0 * others.our_share))

    def of(self, num_draft_rows: float, depth: float) -> float:
        """Return the time of all sessions in one pass, or in halves that draft and verify in turn.

        Engines bring sessions together if that is better (`models.scheduler.batch_window`). They do
        not split them if two halves are better. So the share of time apart is measured.
        """
        draft_ms, half_draft_ms = self._drafts(depth)
        together_ms = self.pass_ms.at(num_draft_rows) + draft_ms
        if self._apart == 0.0:
            return together_ms
        half_ms = self._half_pass_ms.at(num_draft_rows)
        apart_ms = max(2.0 * half_ms, half_ms + half_draft_ms)
        return together_ms - self._apart * max(0.0, together_ms - apart_ms)

    def _drafts(self, depth: float) -> tuple[float, float]:
        """Return the time of drafts for all together, and for half of them."""
        if self._is_drafting and depth != self._draft_ms[0]:
            whole_ms = self._costs.draft_ms(depth, self._num_drafting)
            self._draft_ms = (depth, whole_ms, self._costs.draft_ms(depth, self._num_half))
        return self._draft_ms[1:]


class _Rounds:
    """Rounds in which all sessions draft that can, by depth and number of draft rows."""

    def __init__(
        self,
        forecasts: Sequence[DraftForecast],
        costs: Costs,
        others: Others,
        overhead_ms: float,
        text_tokens: float,
    ) -> None:
        self._forecasts = forecasts
        self._text_tokens = text_tokens
        firsts = [forecast for forecast in forecasts if forecast.survival]
        self._first_rows = sum(each.presence for each in firsts)
        self._first_tokens = len(forecasts) + sum(e.presence * e.survival[0] for e in firsts)
        self._num_away = sum(1 for each in firsts if not each.is_free)
        self._engines = EngineTimes(costs, others, len(forecasts), self._num_away)
        self._pass_ms = self._engines.pass_ms
        self._num_others = others.num_sessions
        self._overhead_ms = overhead_ms

    @property
    def can_draft(self) -> bool:
        """True if any session can have a draft, and passes have been measured."""
        return self._first_rows > 0.0 and self._pass_ms.at(1) > 0.0

    def best_at(self, depth: int, offered: Sequence[_Token]) -> JointPlan:
        """Find the best number of `offered` tokens, the likeliest first, after `depth` steps."""
        num_offered = self._best_number(depth, offered)
        lengths = [min(1, len(forecast.survival)) for forecast in self._forecasts]
        for _, length, index in offered[:num_offered]:
            lengths[index] = length
        deepest = max(
            (k for k, each in zip(lengths, self._forecasts, strict=True) if not each.is_free),
            default=0,
        )
        taken = [self._expected(token) for token in offered[:num_offered]]
        num_rows = self._first_rows + sum(rows for rows, _ in taken)
        tokens = self._first_tokens + sum(accepted for _, accepted in taken)
        engine_ms = self._engines.of(num_rows, deepest)
        rate = self._rate(tokens, num_rows, _round_ms(engine_ms, self._overhead_ms))
        last = -offered[num_offered - 1][0] if num_offered else 1.0
        following = -offered[num_offered][0] if num_offered < len(offered) else 0.0
        price = self._min_survival(last, following, num_rows, rate)
        work = Work(len(lengths), num_rows, self._num_away, deepest)
        each = tuple(lengths)
        return JointPlan(each, deepest, engine_ms, self._overhead_ms, rate, tokens, work, price)

    def _expected(self, token: _Token) -> tuple[float, float]:
        """Return the rows and accepted tokens expected of `token`, which some passes lack."""
        minus_alive, _, index = token
        presence = self._forecasts[index].presence
        return presence, -presence * minus_alive

    def _best_number(self, depth: int, offered: Sequence[_Token]) -> int:
        num_rows, expected = self._first_rows, self._first_tokens
        hope = expected + sum(self._expected(token)[1] for token in offered)
        round_ms = _round_ms(self._engines.of(num_rows, depth), self._overhead_ms)
        best, best_rate = 0, self._rate(expected, num_rows, round_ms)
        for number, token in enumerate(offered, start=1):
            rows, accepted = self._expected(token)
            num_rows += rows
            expected += accepted
            round_ms = _round_ms(self._engines.of(num_rows, depth), self._overhead_ms)
            rate = self._rate(expected, num_rows, round_ms)
            if rate > best_rate:
                best, best_rate = number, rate
            elif self._rate(hope * _ROUNDING, num_rows, round_ms) <= best_rate:
                break  # more rows are never faster, and all that is left to gain would not do
        return best

    def _rate(self, tokens: float, num_rows: float, round_ms: float) -> float:
        """Return the tokens per ms of whole texts, less those that others lose by our rows."""
        num_rounds = self._text_tokens * len(self._forecasts) / tokens
        of_texts = tokens / (1.0 + _LOST_ROUNDS / num_rounds)
        lost = 0.0
        if self._num_others > 0.0:
            alone_ms = max(self._pass_ms.at(0), 1e-9)
            lost = self._num_others * (self._pass_ms.at(num_rows) / alone_ms - 1.0)
        return (of_texts - lost) / round_ms

    def _min_survival(self, last: float, following: float, num_rows: float, rate: float) -> float:
        """Return the survival that separates admitted tokens from others.

        It is the middle between the last admitted token's survival and the following one's (0 if
        none follows). It is the price of a row at the plan's rate, or `_LEAST_SURVIVAL`, if one of
        these is higher. It is never above the last admitted token's survival.
        """
        row_price = rate * (self._pass_ms.at(num_rows + 1) - self._pass_ms.at(num_rows))
        return min(last, max(row_price, (last + following) / 2, _LEAST_SURVIVAL))
