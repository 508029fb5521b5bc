"""What drafting and going on alone gave, measured on whole rounds as they happened.

The joint plan adds up a round from its parts. Parts leave out what happens between them, so each
mode's promise is held against what its rounds gave, and the modes are compared by what is left of
their promises (`Delivery`). The same rounds, summed by task class, say what drafting gains
(`Gain`): rounds without drafts are made on purpose now and then, as a control.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from router.planning.round_plan import Mode
from router.ports import TaskClass

_FORGETTING = 0.98  # of rounds: about 50 are remembered
_TRUST = 15.0  # tokens for which a promise is believed before rounds outweigh it
_HALF_LIFE_S = 300.0  # of what gains are measured by


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


class Delivery:
    """Of what a mode's plans promise, the part that its rounds give: 0.8 is a fifth too little.

    It is about time. How many tokens of a draft are accepted is chance, and estimated elsewhere
    (`acceptance`): a round with a draft counts with the tokens that were to be expected of it, so
    that a few unlucky drafts call nothing off. Given and promised are forgotten alike, so that the
    ratio follows a machine that slows down. A mode that was never tried is believed.
    """

    def __init__(self) -> None:
        self._tokens = self._promised = 0.0
        self.num_rounds = 0

    def observe(self, num_tokens: float, elapsed_ms: float, promised_per_ms: float) -> None:
        """Take in a session's round that brings `num_tokens` where a rate was promised."""
        self.num_rounds += 1
        self._tokens = _FORGETTING * self._tokens + num_tokens
        self._promised = _FORGETTING * self._promised + promised_per_ms * elapsed_ms

    @property
    def share(self) -> float:
        """Delivered over promised, 1.0 as long as nothing is known."""
        return (self._tokens + _TRUST) / (self._promised + _TRUST)


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
