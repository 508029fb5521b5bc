"""How many prompt rows a pass may hold, so that running streams hardly notice prompts.

A running stream waits for whole passes. The promise: the gap between two of its tokens is at most
`max_slowdown` times what it would be without anybody's prompt. In seconds, prompts may add
(max_slowdown - 1) times that gap; they are given 85% of it, because the time of a pass is
foretold from others. What they add comes from two passes:

- the pass that computes the stream's next rows: what it takes beyond a pass of those rows alone;
- the pass before, if the stream's message came while it ran: at most what that took beyond a pass
  without prompts. Messages are taken between passes, so all that are found at a pass's end by
  streams that were not in it count as having waited for it.

So a pass with decode rows gives prompts what the second leaves of the first's allowance. While all
streams are away (their drafts are made elsewhere), a pass is all prompt and may take the whole
allowance: the gap is by then as long as the shortest absence, and at least a pass will be added. An
absence counts for no more than the stream's last one: a longer one is waiting for a prompt in the
other engine, and two engines that both wait for prompts would allow each other ever more. When
nobody is running, prompts get all rows.

Two rules go before the promise. Prompts are never starved: of two passes in a row one has room for
at least `_MIN_ROWS` of their rows. And now and then a pass goes without prompts, because the time
of one without them is what all of this is measured by. Idea of mixing chunks of prompts into
decode passes: Sarathi-Serve (arXiv 2403.02310); it bounds rows, this bounds seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from models.costs.last_pass import LastPass
from models.costs.pass_cost import PassCost
from models.scheduler.sessions import Job, Session

_MIN_ROWS = 8  # fewer cost as much: a tile, and products on a CPU
# Of the allowance: passes vary, and each chunk of a prompt looks at more keys than those by which
# its time is foretold. With all of it up to half of the gaps are longer than promised.
_AIM = 0.85
_REFRESH_PASSES = 32  # so many passes with prompts in a row, then one without


class PrefillBudget:
    """Prompt rows of each pass of one engine.

    Args:
        max_slowdown: how many times longer than without prompts a running stream's gap between
            tokens may be; above 1.
    """

    def __init__(self, max_slowdown: float) -> None:
        self._allowance = _AIM * (max_slowdown - 1.0)
        self._cost = PassCost()
        self._last_pass = LastPass()
        self._last_added_s = 0.0  # by its prompt rows
        self._num_in_a_row = 0  # passes with prompts since one without

    def note_pass(self, num_rows: int, num_prompt_rows: int, duration_s: float, now: float) -> None:
        """A pass took `duration_s` until `now`; `num_prompt_rows` of its rows were of prompts."""
        self._last_pass = LastPass(now - duration_s, now)
        self._cost.note(num_rows, duration_s)
        self._num_in_a_row = self._num_in_a_row + 1 if num_prompt_rows > 0 else 0
        self._last_added_s = 0.0
        if num_prompt_rows > 0:
            alone_s = self._cost.seconds(num_rows - num_prompt_rows)
            self._last_added_s = max(0.0, duration_s - alone_s)

    def beside(self, jobs: Sequence[Job], num_rows: int) -> int:
        """Prompt rows for a pass that also holds `num_rows` rows of these `jobs`, at least one."""
        must_get_on = self._num_in_a_row == 0
        is_stale = self._num_in_a_row >= _REFRESH_PASSES or not self._cost.is_measured(num_rows)
        if is_stale and not must_get_on:
            return 0
        alone_s = self._cost.seconds(num_rows)
        have_waited = any(
            job.num_rows == 0 and self._last_pass.may_have_delayed(job.ready_s) for job in jobs
        )
        left_s = self._allowance * alone_s - self._last_added_s * have_waited
        num_prompt_rows = self._cost.rows_within(alone_s + max(0.0, left_s)) - num_rows
        if must_get_on:
            return max(num_prompt_rows, _MIN_ROWS)
        return num_prompt_rows if num_prompt_rows >= _MIN_ROWS else 0

    def between(self, sessions: Iterable[Session], now: float) -> int | None:
        """Prompt rows for a pass without others; None: as many as there is room for.

        Sessions that hold KV are streams, be their next message on its way or their masks.
        """
        absences_s = [
            min(max(0.0, now - session.last_active_s), session.away_s)
            for session in sessions
            if session.num_computed_tokens > 0 and not _wants_rows(session)
        ]
        if not absences_s:
            return None
        shortest_gap_s = min(absences_s) + self._cost.seconds(1)
        return max(_MIN_ROWS, self._cost.rows_within(self._allowance * shortest_gap_s))


def _wants_rows(session: Session) -> bool:
    return session.job is not None and session.job.logits is None
