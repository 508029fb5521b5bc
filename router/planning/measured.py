"""Measures the results of rounds with drafts and of rounds without them.

The joint plan adds up the engines' work in a round. The rest of a round's time is fitted to
measured rounds, for each mode by itself (`Overheads`). So a plan promises the time that such rounds
really take. The same rounds, summed by task class, show the gain of drafting (`Gain`). Some rounds
are made without drafts on purpose, as a control.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from operator import mul

from router.planning.round_plan import Mode
from router.ports import TaskClass

_KEEPING = 0.99  # per round of a session: what rounds take is known by some 100 of them
_HEAVIEST, _FORGOTTEN = 1e3, 1e-3  # weights of rounds, beside 1.0 of the newest
_KNOWN = 20.0  # rounds after which an odd one is known from others
_SCALE = 8.0  # sessions and steps by which an overhead is expected to differ about as much again
_NUM_FEATURES = 4
_RIDGE = (0.02, 2.0, 2.0, 2.0)  # weight of the expectation that each is 0, in rounds
_HALF_LIFE_S = 300.0  # half-life of the rounds that gains are measured by
LEAST_ROUNDS = 10  # rounds of each side: a gain of fewer is that of one odd round
_LATENESS_HALF_LIFE_S = 10.0
_LATENESS_PRIOR_MS = 200.0  # time of imagined rounds that ended as promised


@dataclass(slots=True)
class PlannerStats:
    """Counters since the start, of all replicas together."""

    num_plans: int = 0
    planning_ms: float = 0.0
    num_control_rounds: int = 0  # rounds of sessions, made without a draft to be measured
    num_trial_rounds: int = 0  # rounds of sessions, made with a draft for the same reason
    num_shadow_drafts: int = 0
    lengths: Counter[int] = field(default_factory=Counter)  # chosen k, by session and round
    predicted_ms: float = 0.0  # sums over the rounds that were measured
    actual_ms: float = 0.0


class Overheads:
    """The time of rounds beyond the engines' work in a plan, by sessions and draft steps.

    It contains links, queues, passes that bring only some of the sessions, and the router's own
    work. It may be negative if engines work side by side. A plane is fitted to all rounds, with
    more weight on later ones. The plane has a slope by sessions, by steps and by both together. A
    separate estimate for each depth would rest on few rounds. If the depth is not in use, they
    would be old. The best of eight such estimates would be the one with the largest error.
    """

    def __init__(self) -> None:
        # Weight and weighted overhead of the rounds of so many sessions and steps. Instead of older
        # ones weighing less, newer ones weigh more: rounds are many, and plans are few.
        self._sums: dict[tuple[int, int], tuple[float, float]] = {}
        self._newest = self._total = 1e-9  # weights: of the newest round, and of all

    def observe(
        self, num_sessions: int, depth: int, overhead_ms: float, most_ms: float = math.inf
    ) -> None:
        """Take in the overhead of a round, or of one of its tokens if no session drafts (depth 0).

        A round with more than `most_ms` waited for something else, for example a prompt. It counts
        as `most_ms` once enough rounds are known to tell.
        """
        if self._total > _KNOWN * self._newest:
            overhead_ms = min(overhead_ms, most_ms)
        newest = self._newest = self._newest / _KEEPING
        weight, moment = self._sums.get((num_sessions, depth), (0.0, 0.0))
        self._sums[num_sessions, depth] = weight + newest, moment + newest * overhead_ms
        self._total += newest
        if newest > _HEAVIEST:
            self._weigh_anew()

    def _weigh_anew(self) -> None:
        """Scale the weights so that the newest round weighs 1 again.

        Rounds that weigh hardly anything beside it are dropped.
        """
        newest, self._newest = self._newest, 1.0
        scaled = {at: (w / newest, moment / newest) for at, (w, moment) in self._sums.items()}
        self._sums = {at: sums for at, sums in scaled.items() if sums[0] > _FORGOTTEN}
        self._total = sum(weight for weight, _ in self._sums.values())

    def of(self, num_sessions: int) -> Callable[[int], float]:
        """Return the expected overhead as a function of depth; 0.0 if nothing was measured."""
        rows = [[0.0] * (_NUM_FEATURES + 1) for _ in range(_NUM_FEATURES)]
        for (sessions, depth), (weight, moment) in self._sums.items():
            features = _features(sessions, depth)
            for row, feature in zip(rows, features, strict=True):
                for index, other in enumerate(features):
                    row[index] += weight / self._newest * feature * other
                row[-1] += moment / self._newest * feature
        for index, (row, ridge) in enumerate(zip(rows, _RIDGE, strict=True)):
            row[index] += ridge
        plane = _solved(rows)
        at_none, at_one = (sum(map(mul, plane, _features(num_sessions, depth))) for depth in (0, 1))
        return lambda depth: at_none + depth * (at_one - at_none)


def _features(num_sessions: int, depth: int) -> tuple[float, ...]:
    """Return a level, depth, sessions and the product of both.

    Unknown effects are taken as a level mostly, see `_RIDGE`.
    """
    return 1.0, depth / _SCALE, num_sessions / _SCALE, num_sessions * depth / _SCALE**2


def _solved(rows: list[list[float]]) -> list[float]:
    """Solve linear equations, each a row whose last number is its right-hand side.

    Their matrix is positive definite, so no pivot is searched for.
    """
    size = len(rows)
    for at in range(size):
        pivot = rows[at] = [value / rows[at][at] for value in rows[at]]
        for other in range(size):
            if other != at and (factor := rows[other][at]) != 0.0:
                rows[other] = [a - factor * b for a, b in zip(rows[other], pivot, strict=True)]
    return [row[-1] for row in rows]


class Lateness:
    """The factor by which rounds of a mode took longer than promised, odd rounds included.

    `Overheads` gives the time of an ordinary round. An odd round waits for a prompt, a drafter that
    is still reading, or sessions that are out of step. Odd rounds are left out or capped there and
    counted in full here. They are a cost of a mode, not of a depth.
    """

    def __init__(self) -> None:
        self._promised_ms = self._actual_ms = self._since_s = 0.0

    def observe(self, promised_ms: float, actual_ms: float, now_s: float) -> None:
        """Take in a round that ends now."""
        keep = 0.5 ** ((now_s - self._since_s) / _LATENESS_HALF_LIFE_S)
        self._promised_ms = keep * self._promised_ms + promised_ms
        self._actual_ms = keep * self._actual_ms + actual_ms
        self._since_s = now_s

    @property
    def factor(self) -> float:
        """The time that rounds took over the promised time; 1.0 if nothing was measured."""
        return (self._actual_ms + _LATENESS_PRIOR_MS) / (self._promised_ms + _LATENESS_PRIOR_MS)


@dataclass(slots=True)
class _Sums:
    """Tokens and time of one mode's rounds, older ones counting less."""

    tokens: float = 0.0
    elapsed_s: float = 0.0
    num_rounds: int = 0
    since_s: float = 0.0

    def add(self, num_tokens: int, elapsed_s: float, now_s: float) -> None:
        keep = 0.5 ** ((now_s - self.since_s) / _HALF_LIFE_S)
        self.tokens = keep * self.tokens + num_tokens
        self.elapsed_s = keep * self.elapsed_s + elapsed_s
        self.num_rounds += 1
        self.since_s = now_s

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.elapsed_s if self.elapsed_s > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class Gain:
    """Tokens per second of a session of one task class, with drafts and without.

    Rates are means over the rounds of the last minutes. The waits for slow clients are left out of
    their time. A rate is 0.0 if there were no such rounds.
    """

    with_drafts: float
    without_drafts: float
    num_rounds_with: int
    num_rounds_without: int

    @property
    def ratio(self) -> float | None:
        """The speed with drafts over that without; None if one of the two has too few rounds."""
        num_rounds = min(self.num_rounds_with, self.num_rounds_without)
        if num_rounds < LEAST_ROUNDS or not self.with_drafts or not self.without_drafts:
            return None
        return self.with_drafts / self.without_drafts


class Gains:
    """Sums rounds by task class and mode."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sums: dict[tuple[TaskClass, Mode], _Sums] = {}

    def observe(self, task: TaskClass, mode: Mode, num_tokens: int, elapsed_ms: float) -> None:
        """Take in a session's round."""
        sums = self._sums.setdefault((task, mode), _Sums())
        sums.add(num_tokens, elapsed_ms / 1e3, self._clock())

    def by_task(self) -> dict[TaskClass, Gain]:
        """Return the gain of each task class that had a round."""
        tasks = dict.fromkeys(task for task, _ in self._sums)
        return {task: self._gain(task) for task in tasks}

    def _gain(self, task: TaskClass) -> Gain:
        drafting = self._sums.get((task, Mode.DRAFTING), _Sums())
        plain = self._sums.get((task, Mode.PLAIN), _Sums())
        return Gain(
            drafting.tokens_per_s, plain.tokens_per_s, drafting.num_rounds, plain.num_rounds
        )
