"""Counts what happened in one session's rounds, and where the time went.

Waits are measured by the loop around each await; engines say how much of a wait was theirs. What
remains of a wait is the link's, what remains of the session's wall clock is the loop's own.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence

from models.protocol.messages import Timing
from router.types import SpeculationStats, TimeSplit


class RoundStats:
    """Mutable during a session; `snapshot` is what the client sees.

    Args:
        clock: seconds, monotonic; that of all times given to it.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._started_at = clock()
        self.num_cached_tokens = 0  # of the prompt
        self._num_rounds = 0
        self._per_step_drafted: list[int] = []
        self._per_step_accepted: list[int] = []
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

    def add_acceptance(self, segments: Sequence[tuple[str, int]], num_accepted: int) -> None:
        """Note that a round is over: so many tokens of each drafter in turn.

        `num_accepted` are accepted altogether.
        """
        num_left = num_accepted
        for name, num_drafted in segments:
            self._drafted_by[name] += num_drafted
            self._accepted_by[name] += min(num_drafted, num_left)
            num_left -= min(num_drafted, num_left)
        self._per_step_drafted.append(sum(num_drafted for _, num_drafted in segments))
        self._per_step_accepted.append(num_accepted)

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
        histogram = [0] * (max(self._per_step_drafted, default=0) + 1)
        for num_accepted in self._per_step_accepted:
            histogram[num_accepted] += 1
        return SpeculationStats(
            num_rounds=self._num_rounds,
            num_spec_steps=len(self._per_step_drafted),
            num_draft_tokens=sum(self._per_step_drafted),
            num_accepted_draft_tokens=sum(self._per_step_accepted),
            acceptance_histogram=tuple(histogram),
            per_step_drafted=tuple(self._per_step_drafted),
            per_step_accepted=tuple(self._per_step_accepted),
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
