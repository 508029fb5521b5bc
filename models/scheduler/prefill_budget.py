"""Limits the prompt rows of a pass, so that running streams hardly notice prompts.

The promise is about the gap between two tokens of a running stream. It is at most `max_slowdown`
times the gap without any prompts. Prompts get 85% of what that allows, in seconds.

For example, `max_slowdown` is 2, and a pass of n rows takes 17.6 + 0.6 n ms. Four streams take a
row each, 20 ms. So prompts may add 0.85 * (2 - 1) * 20 = 17 ms to a gap. They add to it in two
passes, the one that computes the stream's rows and the one before:

    pass 1   4 rows + 28 of a prompt   37 ms   17 ms more than without the prompt
    pass 2   4 rows                    20 ms   of streams whose messages came during pass 1
    pass 3   4 rows + 28 of a prompt   37 ms

Pass 2 has nothing left for streams that have waited for the prompt rows of pass 1. Streams that run
on alone are in every pass and wait for none before their own. So all passes get 28 prompt rows.

While all streams are away (their drafts are made elsewhere) a pass is all prompt. Their gap is then
at least their absence and a pass of one row. If they are away for 60 ms, prompts may take 0.85 *
(60 + 18.2) = 66 ms, 81 rows. If there is no stream at all, prompts get every row of the pass.

Streams that come back are no prompts (`batch`), and slow others for a few passes.

Two rules go before the promise. Prompts are never starved: of two passes in a row one has room for
`MIN_ROWS` of their rows. And one pass in `_REFRESH_PASSES` goes without prompts, because all other
passes are measured against such passes. Chunks of prompts in decode passes are the idea of
Sarathi-Serve (arXiv 2403.02310), which bounds rows where this bounds seconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from models.costs.pass_times import PassTimes
from models.scheduler.sessions import Job, Session

MIN_ROWS = 8  # fewer cost as much: a tile, and products on a CPU
# The share of the allowance that is used: passes vary, and each chunk of a prompt looks at more
# keys than those that predict its time. With all of it up to half of the gaps are longer than
# promised.
_AIM = 0.85
_REFRESH_PASSES = 32  # so many passes with prompts in a row, then one without


class PrefillBudget:
    """Says how many prompt rows each pass of one engine may hold.

    Args:
        max_slowdown: how many times longer than without prompts a running stream's gap between
            tokens may be; above 1.
        times: of the engine's passes, noted there before they are noted here.
    """

    def __init__(self, max_slowdown: float, times: PassTimes) -> None:
        self._allowance = _AIM * (max_slowdown - 1.0)
        self._times = times
        self._last_added_s = 0.0  # by its prompt rows
        self._num_in_a_row = 0  # passes with prompts since one without

    def note_pass(self, num_rows: int, num_prompt_rows: int, duration_s: float) -> None:
        """Take in a pass of `num_rows` rows, `num_prompt_rows` of them of prompts."""
        if num_prompt_rows == 0:
            self._num_in_a_row, self._last_added_s = 0, 0.0
            return
        self._num_in_a_row += 1
        num_others = num_rows - num_prompt_rows
        alone_s = self._times.by_rows.at(num_others) if num_others else 0.0
        self._last_added_s = max(0.0, duration_s - alone_s)

    def beside(self, jobs: Sequence[Job], num_rows: int) -> int:
        """Prompt rows for a pass that also holds `num_rows` rows of these `jobs`, at least one."""
        by_rows = self._times.by_rows
        must_get_on = self._num_in_a_row == 0  # the pass before had none
        is_stale = self._num_in_a_row >= _REFRESH_PASSES or not by_rows.is_measured(num_rows)
        if is_stale and not must_get_on:
            return 0
        alone_s = by_rows.at(num_rows)
        # A job that was in no pass yet and was found when the last one ended has waited for that
        # one's prompt rows; for one that was in it they were part of its own pass.
        have_waited = any(
            job.num_rows == 0 and self._times.may_have_delayed(job.ready_s) for job in jobs
        )
        left_s = self._allowance * alone_s - self._last_added_s * have_waited
        num_prompt_rows = by_rows.count_within(alone_s + max(0.0, left_s)) - num_rows
        if must_get_on:
            return max(num_prompt_rows, MIN_ROWS)
        return num_prompt_rows if num_prompt_rows >= MIN_ROWS else 0

    def between(self, sessions: Iterable[Session], now: float) -> int | None:
        """Prompt rows for a pass without others; None: as many as there is room for.

        Sessions that hold KV are streams, whether their next message is on its way or their masks.
        """
        # An absence counts for no more than the stream's last one. A longer one is a wait for a
        # prompt in the other engine, and two engines that both waited for prompts would allow each
        # other ever more.
        absences_s = [
            min(max(0.0, now - session.last_active_s), session.away_s)
            for session in sessions
            if session.num_computed_tokens > 0 and not _wants_rows(session)
        ]
        if not absences_s:
            return None
        by_rows = self._times.by_rows
        shortest_gap_s = min(absences_s) + by_rows.at(1)
        return max(MIN_ROWS, by_rows.count_within(self._allowance * shortest_gap_s))


def _wants_rows(session: Session) -> bool:
    return session.job is not None and session.job.logits is None
