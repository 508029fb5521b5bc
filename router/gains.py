"""Counts of a planner, and the gain of drafting: rounds with drafts beside control rounds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from router.ports import TaskClass

_HALF_LIFE_S = 600.0  # of rounds: a control round a minute, as of a lone stream, makes 15
LEAST_ROUNDS = 10  # rounds of each side: a gain of fewer is that of one odd round


@dataclass(slots=True)
class PlannerStats:
    """Counters since the start, of all replicas together."""

    num_plans: int = 0
    planning_ms: float = 0.0
    num_control_rounds: int = 0  # rounds of sessions, made without a draft to be measured
    num_probe_rounds: int = 0  # made with a draft for the same reason, while nobody drafts
    lengths: Counter[int] = field(default_factory=Counter)  # chosen k, by session and round
    predicted_ms: float = 0.0  # sums over the rounds that the common plan is about
    actual_ms: float = 0.0


@dataclass(slots=True)
class _Sums:
    """Tokens and time of rounds of one kind, older ones counting less."""

    tokens: float = 0.0
    elapsed_s: float = 0.0
    num_recent: float = 0.0
    num_rounds: int = 0  # since the start
    since_s: float = 0.0

    def add(self, num_tokens: int, elapsed_s: float, now_s: float, num_rounds: int = 1) -> None:
        keep = 0.5 ** ((now_s - self.since_s) / _HALF_LIFE_S)
        self.tokens = keep * self.tokens + num_tokens
        self.elapsed_s = keep * self.elapsed_s + elapsed_s
        self.num_recent = keep * self.num_recent + num_rounds
        self.num_rounds += num_rounds
        self.since_s = now_s

    @property
    def tokens_per_s(self) -> float:
        return self.tokens / self.elapsed_s if self.elapsed_s > 0.0 else 0.0


@dataclass(frozen=True, slots=True)
class Gain:
    """Tokens per second of a session of one task class, with drafts and without.

    Rates are means over rounds, older ones counting less. The waits for slow clients are left out
    of their time. A rate is 0.0 if there were no such rounds. `num_recent` counts rounds of the
    last minutes, of the side that has fewer; the other numbers are since the start.
    """

    with_drafts: float
    without_drafts: float
    num_rounds_with: int
    num_rounds_without: int
    num_recent: float = LEAST_ROUNDS

    @property
    def ratio(self) -> float | None:
        """The speed with drafts over that without; None if one of the two has too few rounds."""
        num_rounds = min(self.num_rounds_with, self.num_rounds_without, self.num_recent)
        if num_rounds < LEAST_ROUNDS or not self.with_drafts or not self.without_drafts:
            return None
        return self.with_drafts / self.without_drafts


class Gains:
    """Sums rounds by task class, with drafts (True) and without."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._sums: dict[tuple[TaskClass, bool], _Sums] = {}

    def observe(
        self, task: TaskClass, num_tokens: int, elapsed_ms: float, *, has_drafts: bool
    ) -> None:
        """Take in a session's round, of those in which sessions draft or of the others."""
        sums = self._sums.setdefault((task, has_drafts), _Sums())
        sums.add(num_tokens, elapsed_ms / 1e3, self._clock())

    def by_task(self) -> dict[TaskClass, Gain]:
        """Return the gain of drafting for each task class that had a round."""
        tasks = dict.fromkeys(task for task, _ in self._sums)
        return {task: self._gain(task) for task in tasks}

    def _gain(self, task: TaskClass) -> Gain:
        drafting = self._sums.get((task, True), _Sums())
        plain = self._sums.get((task, False), _Sums())
        for sums in (drafting, plain):
            sums.add(0, 0.0, self._clock(), 0)  # only time has passed
        nums = drafting.num_rounds, plain.num_rounds, min(drafting.num_recent, plain.num_recent)
        return Gain(drafting.tokens_per_s, plain.tokens_per_s, *nums)
