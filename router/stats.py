"""Statistics of speculation: what happened in a session's rounds, and where the time went.

Waits are measured by the loop around each await; engines say how much of a wait was theirs. The
rest of a wait is the link's. The rest of the session's wall clock is the loop's own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import TypeVar

from models.protocol.messages import Timing

_Sum = TypeVar("_Sum", int, "DraftReplay")


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeSplit:
    """The durations of a request's rounds, in milliseconds, summed over all rounds.

    `queue_ms` is waiting for a place and in engines, `link_ms` message time: the rest of a round
    trip. `loop_ms` is the router's own work, `emit_ms` waiting for the client to take the text.
    """

    draft_ms: float = 0.0
    verify_ms: float = 0.0
    mask_ms: float = 0.0
    queue_ms: float = 0.0
    link_ms: float = 0.0
    grammar_ms: float = 0.0
    loop_ms: float = 0.0
    emit_ms: float = 0.0

    def __add__(self, other: TimeSplit) -> TimeSplit:
        names = [each.name for each in fields(self)]
        return TimeSplit(**{name: getattr(self, name) + getattr(other, name) for name in names})


@dataclass(frozen=True, slots=True)
class DraftReplay:
    """A draft model's choice for each token of an answer or more, given all tokens before it.

    It decides the draft in any round of any length under shared noise. So the effect on rounds is
    counted and not estimated.

    Attributes:
        matches: whether it says each token of the answers.
        ends: places in them where another answer begins; no round goes beyond one.
    """

    matches: tuple[bool, ...]
    ends: tuple[int, ...] = ()

    def __add__(self, other: DraftReplay) -> DraftReplay:
        ends = (*self.ends, *(len(self.matches) + end for end in (0, *other.ends)))
        return DraftReplay(self.matches + other.matches, ends)

    def accepted(self, num_draft_tokens: int) -> list[int]:
        """Draft tokens accepted in each round, were so many drafted in all of them."""
        found, place = [], 0
        for end in (*self.ends, len(self.matches)):
            while place < end:
                ahead = self.matches[place : min(place + num_draft_tokens, end)]
                num_right = ahead.index(False) if False in ahead else len(ahead)
                found.append(num_right)
                place += num_right + 1
            place = end
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeculationStats:
    """The figures of speculation for one request. Counts in vLLM's terms (tokens, steps = rounds).

    Those of several choices are added.
    """

    num_rounds: int = 0  # every verify answered, plain steps included
    per_step_drafted: tuple[int, ...] = ()  # tokens drafted and verified in each round with a draft
    per_step_accepted: tuple[int, ...] = ()  # tokens of these that were accepted
    per_step_ahead: tuple[int, ...] = ()  # of these drafted, there before they were asked for
    num_drafted_by: Mapping[str, int] = field(default_factory=dict)  # by drafter; verified ones
    num_accepted_by: Mapping[str, int] = field(default_factory=dict)
    num_guess_tokens: int = 0  # sent to the draft model as a guess of its draft
    num_right_guess_tokens: int = 0  # that it drafted too: each saved it a step
    time: TimeSplit = field(default_factory=TimeSplit)
    replays: Mapping[str, DraftReplay] = field(default_factory=dict)  # by draft model

    def __add__(self, other: SpeculationStats) -> SpeculationStats:
        return SpeculationStats(
            num_rounds=self.num_rounds + other.num_rounds,
            per_step_drafted=self.per_step_drafted + other.per_step_drafted,
            per_step_accepted=self.per_step_accepted + other.per_step_accepted,
            per_step_ahead=self.per_step_ahead + other.per_step_ahead,
            num_drafted_by=_added(self.num_drafted_by, other.num_drafted_by, 0),
            num_accepted_by=_added(self.num_accepted_by, other.num_accepted_by, 0),
            num_guess_tokens=self.num_guess_tokens + other.num_guess_tokens,
            num_right_guess_tokens=self.num_right_guess_tokens + other.num_right_guess_tokens,
            time=self.time + other.time,
            replays=_added(self.replays, other.replays, DraftReplay(())),
        )

    @property
    def num_ahead_tokens(self) -> int:
        """Draft tokens that were there before they were asked for."""
        return sum(self.per_step_ahead)

    @property
    def num_spec_steps(self) -> int:
        """Rounds that had a draft."""
        return len(self.per_step_drafted)

    @property
    def num_draft_tokens(self) -> int:
        """Tokens that were drafted and verified."""
        return sum(self.per_step_drafted)

    @property
    def num_accepted_draft_tokens(self) -> int:
        """Tokens of these that were accepted."""
        return sum(self.per_step_accepted)

    @property
    def num_spec_tokens(self) -> int:
        """The longest draft of a round. k varies here; where it is fixed, this is k."""
        return max(self.per_step_drafted, default=0)

    @property
    def acceptance_histogram(self) -> tuple[int, ...]:
        """Rounds in which 0, 1, ... draft tokens were accepted, up to the longest draft."""
        histogram = [0] * (self.num_spec_tokens + 1)
        for num_accepted in self.per_step_accepted:
            histogram[num_accepted] += 1
        return tuple(histogram)

    @property
    def mean_acceptance_length(self) -> float:
        """Tokens per round that had a draft: 1 + accepted / rounds. 1.0 without drafts."""
        if self.num_spec_steps == 0:
            return 1.0
        return 1.0 + self.num_accepted_draft_tokens / self.num_spec_steps

    @property
    def draft_acceptance_rate(self) -> float:
        """Accepted / drafted tokens; 0.0 without drafts."""
        if self.num_draft_tokens == 0:
            return 0.0
        return self.num_accepted_draft_tokens / self.num_draft_tokens


def _added(one: Mapping[str, _Sum], other: Mapping[str, _Sum], nothing: _Sum) -> dict[str, _Sum]:
    return {name: one.get(name, nothing) + other.get(name, nothing) for name in [*one, *other]}


class RoundStats:
    """Mutable during a session; `snapshot` is what the client sees.

    Args:
        clock: seconds, monotonic; that of all times given to it.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started_at = clock()
        self.num_cached_tokens = 0  # prompt tokens found in the prefix cache
        self._num_rounds = 0
        self._per_step_drafted: list[int] = []
        self._per_step_accepted: list[int] = []
        self._per_step_ahead: list[int] = []
        self._drafted_by: Counter[str] = Counter()
        self._accepted_by: Counter[str] = Counter()
        self._num_guessed = self._num_guessed_right = 0
        self._draft_ms = self._verify_ms = self._mask_ms = self._queue_ms = 0.0
        self._link_ms = self._grammar_ms = self._emit_ms = 0.0
        self._waited_ms = 0.0

    def add_draft(self, elapsed_ms: float, timing: Timing | None) -> None:
        """Note that a wait for a proposal is over.

        `timing` is None when it failed or nobody else took part: the wait counts as drafting.
        """
        self._waited_ms += elapsed_ms
        if timing is None:
            self._draft_ms += elapsed_ms
            return
        self._draft_ms += timing.pass_ms
        self._split(elapsed_ms, timing)

    def add_verdict(self, since: float, timing: Timing) -> None:
        """Note that a wait for a verdict, begun at `since`, is over."""
        elapsed_ms = self._wait_over(since)
        self._num_rounds += 1
        self._verify_ms += timing.pass_ms
        self._split(elapsed_ms, timing)

    def add_acceptance(
        self, segments: Sequence[tuple[str, int]], num_accepted: int, num_ahead: int = 0
    ) -> None:
        """Note that a round is over: so many tokens of each drafter in turn.

        `num_accepted` are accepted altogether, and `num_ahead` were drafted ahead.
        """
        num_left = num_accepted
        for name, num_drafted in segments:
            self._drafted_by[name] += num_drafted
            self._accepted_by[name] += min(num_drafted, num_left)
            num_left -= min(num_drafted, num_left)
        self._per_step_drafted.append(sum(num_drafted for _, num_drafted in segments))
        self._per_step_accepted.append(num_accepted)
        self._per_step_ahead.append(num_ahead)

    def add_guess(self, num_tokens: int, num_right: int) -> None:
        """Note that a drafter was sent so many tokens as a guess; `num_right` were right."""
        self._num_guessed += num_tokens
        self._num_guessed_right += num_right

    def add_grammar(self, since: float) -> None:
        """Note that a wait for the grammar's verdict is over."""
        self._grammar_ms += self._wait_over(since)

    def add_emit(self, since: float) -> None:
        """Note that the client has taken the text emitted at `since`."""
        self._emit_ms += self._wait_over(since)

    def time(self) -> TimeSplit:
        """Return the split of the time so far. No wait may be open."""
        wall_ms = (self._clock() - self._started_at) * 1e3
        return TimeSplit(
            draft_ms=self._draft_ms,
            verify_ms=self._verify_ms,
            mask_ms=self._mask_ms,
            queue_ms=self._queue_ms,
            link_ms=self._link_ms,
            grammar_ms=self._grammar_ms,
            loop_ms=max(0.0, wall_ms - self._waited_ms),
            emit_ms=self._emit_ms,
        )

    def snapshot(self) -> SpeculationStats:
        """Return the figures so far."""
        return SpeculationStats(
            num_rounds=self._num_rounds,
            per_step_drafted=tuple(self._per_step_drafted),
            per_step_accepted=tuple(self._per_step_accepted),
            per_step_ahead=tuple(self._per_step_ahead),
            num_drafted_by=dict(self._drafted_by),
            num_accepted_by=dict(self._accepted_by),
            num_guess_tokens=self._num_guessed,
            num_right_guess_tokens=self._num_guessed_right,
            time=self.time(),
        )

    def _wait_over(self, since: float) -> float:
        elapsed_ms = (self._clock() - since) * 1e3
        self._waited_ms += elapsed_ms
        return elapsed_ms

    def _split(self, elapsed_ms: float, timing: Timing) -> None:
        self._mask_ms += timing.mask_ms
        self._queue_ms += timing.queue_ms
        known_ms = timing.pass_ms + timing.mask_ms + timing.queue_ms
        self._link_ms += max(0.0, elapsed_ms - known_ms)
