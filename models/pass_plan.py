"""Which rows the next forward pass holds: row budget, chunked prefill, KV blocks, preemption.

Short needs (a decode row, the rows of a verify, a few tokens to catch up) go first and whole;
what is left of the budget goes to long prompts in chunks, so a long prompt does not stall the
others, and a reserved quarter keeps it from being stalled by them. Within each class the job
that has waited longest goes first.

When blocks run out, the youngest session younger than the asker loses its blocks (its log stays,
so nothing but time is lost); without such a session the asker waits. So the oldest session always
gets on. A session reserves blocks for its whole log at once or not at all: partly filled waiting
sessions would only take blocks from each other. Idea: vLLM's scheduler (arXiv 2309.06180).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from models.kv_cache import BlockPool, OutOfBlocks
from models.prefix_cache import PrefixCache
from models.session_table import Job, Session

_PREFILL_SHARE = 4  # 1/4 of the rows is kept for prompts while there are any
_SHORT_ROWS = 16  # up to so many rows count as catching up, not as a prompt


@dataclass(frozen=True, slots=True)
class PlannedRows:
    """Rows [start, start + num_rows) of a session's log."""

    session: Session
    job: Job
    start: int
    num_rows: int
    num_logits: int  # of the last rows; 0 where more rows must follow in a later pass
    num_prompt_logits: int = 0  # of the rows before these, for the logprobs of the prompt


@dataclass(slots=True)
class PassPlan:
    """What the next pass computes, and who could not get KV blocks."""

    rows: list[PlannedRows] = field(default_factory=list)
    starved: list[Session] = field(default_factory=list)  # others hold the blocks they need
    oversized: list[Session] = field(default_factory=list)  # the whole pool is too small


class PassPlanner:
    """Plans passes of at most `max_rows` rows over the blocks of `pool`.

    Rows that `prefix_cache` has are not computed; None: there is no such cache.
    """

    def __init__(
        self, pool: BlockPool, max_rows: int, prefix_cache: PrefixCache | None = None
    ) -> None:
        self._pool = pool
        if prefix_cache is None:
            prefix_cache = PrefixCache.disabled(pool)
        self._prefix_cache = prefix_cache
        self._max_rows = max_rows
        self._reserve_rows = max_rows // _PREFILL_SHARE
        self.num_preemptions = 0

    @property
    def max_logits(self) -> int:
        """Rows with logits that one job may ask for: they must fit in one pass."""
        return self._max_rows - self._reserve_rows

    def plan(self, waiting: Iterable[Session], sessions: Iterable[Session]) -> PassPlan:
        """Plan for the `waiting` sessions, which have jobs; any of `sessions` may lose blocks."""
        everyone = list(sessions)
        short: list[PlannedRows] = []
        long: list[PlannedRows] = []
        for session in waiting:
            self._prefix_cache.adopt(session)
            need = _whole_need(session)
            limit = max(need.num_logits, min(_SHORT_ROWS, self.max_logits))
            (short if need.num_rows <= limit else long).append(need)
        short.sort(key=_ready_s)
        long.sort(key=_ready_s)
        plan = PassPlan()
        planned: dict[Session, PlannedRows] = {}
        self._fill(plan, planned, short, self._max_rows - self._reserve_rows * bool(long), everyone)
        self._fill(plan, planned, long, self._max_rows, everyone)
        plan.rows = list(planned.values())
        return plan

    def _fill(
        self,
        plan: PassPlan,
        planned: dict[Session, PlannedRows],
        needs: list[PlannedRows],
        max_rows: int,
        everyone: list[Session],
    ) -> None:
        """Add needs, whole or as chunks, while the pass stays within `max_rows` rows."""
        num_rows = sum(rows.num_rows for rows in planned.values())
        for need in needs:
            rows = _cut(need, max_rows - num_rows)
            if rows is None or need.session.num_computed < need.start:  # lost its blocks just now
                continue
            if self._prefix_cache.awaits(need, planned.values()):
                continue
            if self._reserve(need, planned, everyone):
                planned[need.session] = rows
                num_rows = sum(rows.num_rows for rows in planned.values())
            elif any(s.table.block_ids for s in everyone if s is not need.session):
                plan.starved.append(need.session)
            else:
                plan.oversized.append(need.session)

    def _reserve(
        self, need: PlannedRows, planned: dict[Session, PlannedRows], everyone: list[Session]
    ) -> bool:
        """Blocks for the session's whole log, taken from younger sessions if that is enough.

        Those that the need writes are the session's own afterwards.
        """
        session = need.session
        while True:
            try:
                session.reserve_rows(need.start)
            except OutOfBlocks as error:
                younger = [s for s in everyone if s.order > session.order and s.table.block_ids]
                own = session.table.block_ids[need.start // self._pool.block_size :]
                if error.num_missing > self._pool.num_released((s.table for s in younger), own):
                    return False  # who gave up blocks in vain could not run either
                victim = max(younger, key=lambda s: s.order)
                victim.release_blocks()
                planned.pop(victim, None)
                self.num_preemptions += 1
            else:
                return True


def _whole_need(session: Session) -> PlannedRows:
    """All rows from the first one missing, or the first that must give logits, to the last.

    They begin earlier, at the block's start, where the first of them is in a shared block.
    """
    job = session.job
    assert job is not None, f"session {session.session_id} waits without a job"
    length = len(session.log)
    first = min(session.num_computed, length - job.num_logits)
    if session.needs_prompt_logits:
        first = min(first, len(session.prompt_logprobs))
    start = session.table.first_row(first)
    num_prompt_logits = session.num_prompt_logits(start, length - start)
    return PlannedRows(session, job, start, length - start, job.num_logits, num_prompt_logits)


def _cut(need: PlannedRows, budget: int) -> PlannedRows | None:
    """As much of the need as `budget` rows hold; the rows with logits stay together, at its end."""
    if need.num_rows <= budget:
        return need
    num_rows = min(budget, need.num_rows - need.num_logits)
    if num_rows < 1:
        return None
    num_prompt_logits = need.session.num_prompt_logits(need.start, num_rows)
    return PlannedRows(need.session, need.job, need.start, num_rows, 0, num_prompt_logits)


def _ready_s(rows: PlannedRows) -> float:
    return rows.job.ready_s
