"""What drafting and going on alone gave, measured on whole rounds as they happened.

The joint plan adds up what engines do in a round. What happens between that is fitted to whole
rounds (`Overheads`), for each mode by itself, so that a plan promises what such rounds gave. The
same rounds, summed by task class, say what drafting gains (`Gain`): rounds without drafts are made
on purpose now and then, as a control.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import fmean

from router.planning.round_plan import Mode
from router.ports import TaskClass

_NUM_OVERHEADS = 32  # rounds of sessions
_HALF_LIFE_S = 300.0  # of what gains are measured by
_LATENESS_HALF_LIFE_S = 10.0
_LATENESS_PRIOR_MS = 200.0  # of rounds that ended when they were to


@dataclass(slots=True)
class PlannerStats:
    """Counters since the start, all replicas together."""

    num_plans: int = 0
    planning_ms: float = 0.0
    num_control_rounds: int = 0  # of sessions, made without a draft to be measured
    num_trial_rounds: int = 0  # of sessions, made with a draft for the same reason
    num_shadow_drafts: int = 0
    lengths: Counter[int] = field(default_factory=Counter)  # chosen k, by session and round
    predicted_ms: float = 0.0  # sums over the rounds that were measured
    actual_ms: float = 0.0


class Overheads:
    """What rounds take beyond what a plan counts engines with, by sessions and draft steps.

    Links, queues, passes that bring only some of the sessions, the router's own work: it is fitted
    to whole rounds as they happened, and may be negative where engines work side by side. The mean
    of the middle half of the last rounds: one that waited for a prompt says nothing of the next.
    """

    def __init__(self) -> None:
        self._newest: dict[tuple[int, int], deque[float]] = {}

    def observe(self, num_sessions: int, depth: int, overhead_ms: float) -> None:
        """Take in a round, or for each of its tokens where nobody drafts (depth 0)."""
        newest = self._newest.setdefault((num_sessions, depth), deque(maxlen=_NUM_OVERHEADS))
        newest.append(overhead_ms)

    def of(self, num_sessions: int, depth: int) -> float:
        """What is expected, by the nearest number of sessions and depth measured; else 0.0."""
        if not self._newest:
            return 0.0
        nearest = min(
            self._newest,
            key=lambda cell: (abs(cell[0] - num_sessions), abs(cell[1] - depth), cell),
        )
        values = sorted(self._newest[nearest])
        quarter = len(values) // 4
        return fmean(values[quarter : len(values) - quarter])


class Lateness:
    """By what factor rounds of a mode took longer than promised, the odd ones with the others.

    `Overheads` says what an ordinary round takes. Rounds that wait for a prompt, for a drafter that
    is still reading, or for sessions that are out of step are left out there and counted here: they
    are no part of what a depth costs, but of what a mode does.
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
        """1.0 where nothing was measured; more is later."""
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

    Rates are means over the last minutes of the time that rounds took, waits for slow clients left
    out; 0.0 where there were no such rounds.
    """

    with_drafts: float
    without_drafts: float
    num_rounds_with: int
    num_rounds_without: int

    @property
    def ratio(self) -> float | None:
        """How many times as fast drafting is; None: one of the two was not measured."""
        if self.with_drafts == 0.0 or self.without_drafts == 0.0:
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
        """The gain of each task class that had a round."""
        tasks = dict.fromkeys(task for task, _ in self._sums)
        return {task: self._gain(task) for task in tasks}

    def _gain(self, task: TaskClass) -> Gain:
        drafting = self._sums.get((task, Mode.DRAFTING), _Sums())
        plain = self._sums.get((task, Mode.PLAIN), _Sums())
        return Gain(
            drafting.tokens_per_s, plain.tokens_per_s, drafting.num_rounds, plain.num_rounds
        )
