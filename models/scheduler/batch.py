"""Chooses the rows of the next forward pass: row budget and chunked prefill.

Short needs (a decode row, the rows of a verify, a few tokens to catch up) go first and whole.
Prompts are split into chunks. A chunk uses the rows that are left, up to a limit that keeps running
streams fast (`prefill_budget`). A reserved quarter of the rows keeps prompts from being stalled in
turn. A stream that has begun elsewhere, or lost its blocks, is silent meanwhile. So its rows go
before prompts, as many as there is room for. So does a prompt that `goes_first`, if one pass can
hold it; it leads the others if not. The job that has waited longest goes first within each class.
`preemption` decides which sessions lose their blocks when these run out.

For example, a pass has at most 512 rows. Eight sessions verify 5 rows each, and prompts of 700 and
300 tokens wait. 384 rows are for short needs, which take 40. The prompts may have as many of the
other 472 as the budget says, say 100. The pass holds 8 * 5 rows and the first 100 of the prompt
that came first.

Idea: vLLM's scheduler (arXiv 2309.06180).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from models.kv.block_pool import BlockPool
from models.scheduler.preemption import Preemption
from models.scheduler.prefill_budget import MIN_ROWS, PrefillBudget
from models.scheduler.prefix_cache import PrefixCache
from models.scheduler.sessions import PlannedRows, Session

_PREFILL_SHARE = 4  # 1/4 of the rows is kept for prompts while there are any
_SHORT_ROWS = 16  # up to so many rows count as catching up, not as a prompt


@dataclass(slots=True)
class PassPlan:
    """The rows of the next pass, and the sessions that got no KV blocks."""

    rows: list[PlannedRows] = field(default_factory=list)
    starved: list[Session] = field(default_factory=list)  # others hold the blocks they need
    oversized: list[Session] = field(default_factory=list)  # the whole pool is too small


class PassPlanner:
    """Plans passes of at most `max_rows` rows over the blocks of `pool`.

    Args:
        pool: the KV blocks.
        max_rows: of one pass.
        budget: how many rows of prompts running streams put up with; None: as many as fit.
        prefix_cache: rows that it has are not computed; None: there is no such cache.
    """

    def __init__(
        self,
        pool: BlockPool,
        max_rows: int,
        budget: PrefillBudget | None = None,
        prefix_cache: PrefixCache | None = None,
    ) -> None:
        self._pool = pool
        self.prefix_cache = prefix_cache or PrefixCache.disabled(pool)
        self._max_rows = max_rows
        self._reserve_rows = min(max(1, max_rows // _PREFILL_SHARE), max_rows - 1)
        self._budget = budget
        self.num_preemptions = 0

    @property
    def max_logits(self) -> int:
        """Rows with logits that one job may ask for: they must fit in one pass."""
        return self._max_rows - self._reserve_rows

    def plan(
        self, waiting: Iterable[Session], sessions: Iterable[Session], now: float = 0.0
    ) -> PassPlan:
        """Plans for the `waiting` sessions, which have jobs; any of `sessions` may be preempted.

        `now` is on the clock that stamps jobs and sessions.
        """
        everyone = list(sessions)
        # The whole needs of sessions, without rows that the prefix cache has.
        short: list[PlannedRows] = []
        begun: list[PlannedRows] = []
        long: list[PlannedRows] = []
        max_short = min(_SHORT_ROWS, self.max_logits)
        for session in waiting:
            need = _whole_need(session, self.prefix_cache.reach(session), max_short)
            others = begun if self._is_ahead_of_prompts(need) else long
            (others if need.is_prompt else short).append(need)
        # Short needs first, then prompts: as much of each as there are rows and blocks for.
        for needs in (short, begun, long):
            needs.sort(key=_ready_s)
        long.sort(key=_goes_first, reverse=True)
        filling = _Filling(self._pool, self.prefix_cache, everyone, max_short)
        filling.add(short, self._max_rows - self._reserve_rows * bool(begun or long))
        filling.add(begun, self._max_rows - min(MIN_ROWS, self._reserve_rows) * bool(long))
        if long:
            filling.add(long, self._max_rows_with_prompts(filling, everyone, now))
        self.num_preemptions += filling.num_preemptions
        return filling.plan()

    def _is_ahead_of_prompts(self, need: PlannedRows) -> bool:
        if need.session.is_past_prompt:
            return True
        return need.session.opened.goes_first and need.num_rows <= self.max_logits

    def note_pass(self, rows: list[PlannedRows], duration_s: float) -> None:
        """Take in that the pass that was planned last took `duration_s`."""
        if self._budget is not None:
            num_rows = sum(planned.num_pass_rows for planned in rows)
            num_prompt_rows = sum(planned.num_rows for planned in rows if planned.is_prompt)
            self._budget.note_pass(num_rows, num_prompt_rows, duration_s)

    def _max_rows_with_prompts(self, filling: _Filling, everyone: list[Session], now: float) -> int:
        """Rows of the whole pass, once prompts are added to those in `filling`."""
        num_prompt_rows: int | None = None
        if self._budget is not None and filling.planned:
            jobs = [rows.job for rows in filling.planned.values()]
            num_prompt_rows = self._budget.beside(jobs, filling.num_rows)
        elif self._budget is not None:
            num_prompt_rows = self._budget.between(everyone, now)
        if num_prompt_rows is None:
            return self._max_rows
        return min(self._max_rows, filling.num_rows + num_prompt_rows)


class _Filling:
    """A pass while it is being filled.

    A session takes its prefix cache blocks together with the other blocks it needs, or not at all.
    A waiting session holds none, so that others can have them.
    """

    def __init__(
        self,
        pool: BlockPool,
        prefix_cache: PrefixCache,
        everyone: list[Session],
        max_short: int,
    ) -> None:
        self._pool = pool
        self._prefix_cache = prefix_cache
        self._claims = Preemption(pool, everyone)
        self._max_short = max_short
        self._starved: list[Session] = []
        self._oversized: list[Session] = []
        self._preempted: set[Session] = set()
        self.planned: dict[Session, PlannedRows] = {}
        self.num_rows = 0
        self.num_preemptions = 0

    def add(self, needs: list[PlannedRows], max_rows: int) -> None:
        """Add needs, whole or as chunks, while the pass stays within `max_rows` rows."""
        for need in needs:
            rows = _cut(need, max_rows - self.num_rows)
            if rows is None or need.session in self._preempted:
                continue
            if self._prefix_cache.awaits(need, self.planned.values()):
                continue
            if self._is_hopeless(need.session) or not self._claim(rows):
                self._leave_out(need.session)

    def _claim(self, rows: PlannedRows) -> bool:
        """Add these rows if there are blocks for all of the session's tokens."""
        session = rows.session
        # Look into the prefix cache again: blocks that `plan` counted on may have gone to others in
        # the meantime. Then the session needs more rows than it was planned with.
        was_waiting = not session.table.block_ids
        if was_waiting or session.num_computed_tokens < rows.start:
            self._prefix_cache.adopt(session)
        if session.num_computed_tokens < rows.start:  # its blocks went to others
            need = _whole_need(session, session.num_computed_tokens, self._max_short)
            cut = _cut(need, rows.num_rows)
            assert cut is not None, f"{rows.num_rows} of {need.num_rows} rows are none"
            rows = cut
        # A session that held nothing and gets too little gives back what the cache had for it.
        victims = self._claims.claim(session, rows.start)
        if victims is None:
            if was_waiting:
                self._prefix_cache.unask(session)
                self._claims.withdraw(session)
            return False
        self._drop(victims)
        self.planned[session] = rows
        self.num_rows += rows.num_rows
        return True

    def _is_hopeless(self, session: Session) -> bool:
        """Return whether a claim must fail like an older one; then it takes no cached blocks."""
        if session.table.block_ids:
            return False
        most = self._pool.blocks_for(len(session.tokens))
        if not self._claims.has_refused(session, most):
            return False
        return self._claims.has_refused(session, self._prefix_cache.num_lacking(session))

    def _leave_out(self, session: Session) -> None:
        is_oversized = self._pool.blocks_for(len(session.tokens)) > self._pool.num_blocks
        (self._oversized if is_oversized else self._starved).append(session)

    def plan(self) -> PassPlan:
        """Return the finished plan."""
        return PassPlan(list(self.planned.values()), self._starved, self._oversized)

    def _drop(self, victims: list[Session]) -> None:
        """Take sessions that lost their blocks out of the pass again."""
        self.num_preemptions += len(victims)
        self._preempted.update(victims)
        for victim in victims:
            rows = self.planned.pop(victim, None)
            if rows is not None:
                self.num_rows -= rows.num_rows


def _whole_need(session: Session, num_computed_tokens: int, max_short: int) -> PlannedRows:
    """Return all rows after the computed ones, or from the first that must give logits.

    They begin at the block's start if the first of them is in a shared block. A need of more than
    `max_short` rows counts as a prompt to its end, unless all its rows give logits. So does any
    fork.
    """
    job = session.job
    assert job is not None, f"session {session.session_id} waits without a job"
    length, num_logits = len(session.tokens), job.num_logits
    first = min(num_computed_tokens, length - num_logits)
    if session.needs_prompt_logits:
        first = min(first, session.first_prompt_logits)
    start = session.table.first_row(first)
    num_rows = length - start
    if num_rows <= num_logits and session.taker is None:
        job.is_prompt = False
    elif num_rows > max_short or session.taker is not None:
        job.is_prompt = True
    return PlannedRows(
        session=session,
        job=job,
        start=start,
        num_rows=num_rows,
        num_logits=num_logits,
        num_prompt_logits=session.num_prompt_logits(start, num_rows),
        is_prompt=job.is_prompt,
    )


def _cut(need: PlannedRows, budget: int) -> PlannedRows | None:
    """Cut the need to `budget` rows; the rows with logits stay together, at its end."""
    if need.num_rows <= budget:
        return need
    num_rows = min(budget, need.num_rows - need.num_logits)
    if num_rows < 1:
        return None
    num_prompt_logits = need.session.num_prompt_logits(need.start, num_rows)
    return replace(need, num_rows=num_rows, num_logits=0, num_prompt_logits=num_prompt_logits)


def _ready_s(rows: PlannedRows) -> float:
    return rows.job.ready_s


def _goes_first(rows: PlannedRows) -> bool:
    return rows.session.opened.goes_first
