"""Signs of life for senders that wait: a job that was not answered for long reports `Queued`.

A sender that hears nothing gives its lease up and comes back as the youngest session, after all
others. So a `Queued` goes out while a job waits for KV blocks or for its turn. It also goes out
until the end of a long prompt. Its intervals are far below any sender's patience. An engine that
hangs sends none, so silence goes on to mean that it is lost.
"""

from __future__ import annotations

from collections.abc import Iterable

from models.protocol.messages import Queued
from models.scheduler.sessions import Job, Session

QUEUED_INTERVAL_S = 1.0
_LOOKS_PER_INTERVAL = 4


class QueueNotices:
    """Says which senders are due a notice, and when.

    Args:
        interval_s: between an arrival or answer and the first notice, and between notices; a
            quarter more where nobody looked in time.
    """

    def __init__(self, interval_s: float) -> None:
        self._interval_s = interval_s
        self._next_look_s = 0.0

    def is_time_to_look(self, now: float) -> bool:
        """Return whether a notice may be due."""
        return now >= self._next_look_s

    def take(self, jobs: Iterable[tuple[Session, Job]], now: float) -> list[tuple[object, Queued]]:
        """Return the notices that are due now, with the address they go to."""
        if not self.is_time_to_look(now):
            return []
        self._next_look_s = now + self._interval_s / _LOOKS_PER_INTERVAL
        notices: list[tuple[object, Queued]] = []
        for session, job in jobs:
            is_recent = now - max(job.since_s, job.notified_s) < self._interval_s
            if is_recent or session.taker is not None:  # nobody asked for a fork
                continue
            job.notified_s = now
            queued = Queued(
                session_id=session.session_id, seq=session.seq, num_rows_done=job.num_rows_done
            )
            notices.append((session.reply_to, queued))
        return notices
