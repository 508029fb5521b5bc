"""The base of both engines: submit messages in any order, step, take the replies.

    submit() -> header rules (`sessions`) -> a job per session (`jobs`)
    step()   -> masks that came -> one pass (`batch`, `runner`) -> sampled tokens (`sampler`)
                -> the subclass turns these into replies or further rows

One thread drives an engine; it knows no sockets, threads or processes. Masks are asked for when the
tokens they belong to are known. They are expected by the end of the pass. A session whose masks are
later keeps its logits and is completed in a later step; the others go on.

Invariants: every message that asks for an answer is answered once with its own `seq`, again for
each repeat. Only a message that a newer one replaces is not. `Queued` goes out at intervals while
an answer takes long. A constrained session never gets a token without its mask. A failing forward
pass is not survived: the exception leaves `step`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import ClassVar, Literal

from torch import Tensor

from models.costs.pass_times import PassTimes
from models.engine.drafting.side_paths import SidePaths
from models.engine.jobs import Jobs, Outgoing
from models.engine.load import EngineLoad
from models.engine.logprobs import note_prompt_logits
from models.engine.notices import QUEUED_INTERVAL_S, QueueNotices
from models.engine.runner import ModelRunner
from models.engine.sampler import is_drawable, legal_prefix, num_drawable
from models.engine.stats import PassTotals, engine_load
from models.engine.terms import adapter_number, check_terms, complaint
from models.grammar.masks import MaskClient, MaskSource
from models.kv.block_pool import BlockTable
from models.protocol.messages import (
    Choose,
    Close,
    EngineQuestion,
    EngineRequest,
    Failed,
    Open,
    Propose,
    Verify,
)
from models.sampling.draws import load_kernels
from models.sampling.penalties import TokenHistory, has_penalties
from models.scheduler.batch import PassPlan, PassPlanner
from models.scheduler.prefill_budget import PrefillBudget
from models.scheduler.prefix_cache import PrefixCache
from models.scheduler.sessions import Job, PlannedRows, Session, SessionTable

FailureCode = Literal["context_too_long", "mask_unavailable", "invalid", "internal"]

_MASK_POLL_S = 0.002  # longest sleep of a step that has nothing to do but wait for masks


class Engine(ABC):
    """Sessions, passes and masks of one model; subclasses say what a message asks for.

    Args:
        runner: computes the passes.
        mask_source: where masks come from.
        epoch: of this life of the engine.
        clock: seconds, monotonic.
        mask_wait_s: how long a finished pass waits for masks before they count as missing; None:
            `default_mask_wait_s`.
        queued_interval_s: between the signs of life to a sender whose job must wait.
    """

    default_mask_wait_s: ClassVar[float]

    def __init__(
        self,
        runner: ModelRunner,
        mask_source: MaskSource,
        epoch: int,
        *,
        clock: Callable[[], float] = time.perf_counter,
        mask_wait_s: float | None = None,
        queued_interval_s: float = QUEUED_INTERVAL_S,
    ) -> None:
        self._runner = runner
        self._clock = clock
        self._mask_wait_s = self.default_mask_wait_s if mask_wait_s is None else mask_wait_s
        self._table = SessionTable(epoch, runner.pool.new_table)
        self._masks = MaskClient(mask_source)
        self._jobs = Jobs(self._masks, clock)
        self._prefix_cache = PrefixCache(
            runner.pool, runner.are_finite, is_enabled=runner.config.enable_prefix_caching
        )
        self._times = PassTimes()
        budget = PrefillBudget(runner.config.max_prefill_slowdown, self._times)
        self._planner = PassPlanner(
            runner.pool, runner.config.max_num_batched_tokens, budget, self._prefix_cache
        )
        self._side_paths = SidePaths(runner.pool, runner.max_num_batched_tokens)
        self.pass_rows = 0  # of the newest step's pass, which may still run; any thread reads it
        self._is_stalled = False  # all jobs wait for blocks of sessions that have none
        self._notices = QueueNotices(queued_interval_s)
        self._totals = PassTotals()
        load_kernels(runner.device, runner.vocab_size)  # else the first sampled request would
        self._set_up(runner)

    @abstractmethod
    def _set_up(self, runner: ModelRunner) -> None:
        """Make what the subclass has of its own, at the end of `__init__`."""

    # --- the leader's side ----------------------------------------------------------------------

    def submit(self, message: EngineRequest, reply_to: object) -> None:
        """Take a message, at any time, in any order; replies to it leave `step` with `reply_to`.

        Raises:
            ValueError: nothing can be computed by what it says; it was not taken.
        """
        now = self._clock()
        self._is_stalled = False
        match message:
            case Open():
                self._open(message, now)
            case Close():
                self._close(message.session_id, message.epoch)
            case Propose() | Verify() | Choose():
                self._take(message, reply_to, now)

    def step(self) -> list[Outgoing]:
        """Run at most one pass; the replies that are ready now."""
        self.pass_rows = 0
        self._masks.collect(0.0)
        now = self._clock()
        self._expire(now)
        waiting = self._waiting()
        plan = self._planner.plan(waiting, self._everyone(), now) if waiting else PassPlan()
        self._is_stalled = not plan.rows and not self._jobs.are_any_held()
        for session in plan.starved:
            self._on_starved(session)
        for session in plan.oversized:
            self._on_oversized(session)
        if plan.rows:
            self._run_pass(plan.rows)
        elif self._jobs.are_any_held():
            self._masks.collect(min(_MASK_POLL_S, self._mask_wait_s))
            self._complete([], None, now)
        for reply_to, notice in self._notices.take(self._jobs, self._clock()):
            self._jobs.send(reply_to, notice)
        return self._jobs.take_replies()

    @property
    def has_work(self) -> bool:
        """True if a `step` would do something now."""
        if self._jobs.has_replies or not self._jobs:
            return self._jobs.has_replies
        return not self._is_stalled or self._notices.is_time_to_look(self._clock())

    @abstractmethod
    def wait_s(self, now: float) -> float:
        """Seconds the caller may wait for further messages before `step`; 0: step now."""

    def close(self, session_id: str) -> None:
        """Forget a session whose lease has ended. Idempotent."""
        self._is_stalled = False
        self._close(session_id, None)

    def load(self) -> EngineLoad:
        """Return how full and busy the engine is; cheap enough to be asked while streams run."""
        return engine_load(self._table, self._runner.pool, self._totals, self._times, self._planner)

    @property
    def num_used_blocks(self) -> int:
        """KV blocks that sessions hold. May be read from any thread."""
        pool = self._runner.pool
        return pool.num_blocks - pool.num_free

    def idle_s(self) -> dict[str, float]:
        """Return the seconds since each session's last message or answer; 0 while it has a job."""
        now = self._clock()
        return {
            session.session_id: 0.0 if session.job is not None else now - session.last_active_s
            for session in self._table
        }

    @property
    def runner(self) -> ModelRunner:
        """The model, its cache and its blocks: to look at, from the engine's own thread."""
        return self._runner

    @property
    def sessions(self) -> list[Session]:
        """All sessions by age, likewise to look at."""
        return list(self._table)

    def block_tables(self) -> list[BlockTable]:
        """Return all block tables in use, for `BlockPool.check`."""
        return [session.table for session in self._everyone()]

    def _waiting(self) -> list[Session]:
        """Return the sessions that need rows in the next pass."""
        return self._jobs.waiting()

    def _everyone(self) -> list[Session]:
        """Return all sessions that may hold blocks."""
        return list(self._table)

    # --- what a message asks for: the subclass ----------------------------------------------------

    @abstractmethod
    def _begin(self, session: Session, message: EngineQuestion, now: float) -> None:
        """Start the job of an admitted message, or answer it at once."""

    @abstractmethod
    def _sample(self, jobs: list[tuple[Session, Job]], whole: Tensor | None) -> list[list[int]]:
        """Sample the tokens of each job; `whole` [R, V] are all logits, if in one tensor."""

    @abstractmethod
    def _on_sampled(self, session: Session, job: Job, tokens: list[int], now: float) -> None:
        """Act on what `_sample` gave for the job, at least one token; fewer where masks end."""

    @abstractmethod
    def _on_mask_missing(self, session: Session, job: Job, reason: str, *, is_late: bool) -> None:
        """End the job: there will be no mask for its next rows."""

    @abstractmethod
    def _on_starved(self, session: Session) -> None:
        """Act on a job that needs blocks which older sessions hold: end it or let it wait."""

    @abstractmethod
    def _on_oversized(self, session: Session) -> None:
        """End the job: the whole KV pool is too small for the session."""

    def _end_job(self, session: Session) -> None:
        """End the session's job, answered or not. Idempotent."""
        self._jobs.end(session)

    def _expire(self, now: float) -> None:
        """End jobs that have waited too long."""
        for session, job in self._jobs:
            if job.mask is None or job.mask.rows is not None:
                continue
            if job.mask.failure:
                self._on_mask_missing(session, job, job.mask.failure, is_late=False)
                continue
            limit_s = self._mask_wait_s if job.mask_wait_s is None else job.mask_wait_s
            if job.logits is not None and now - job.held_since_s >= limit_s:
                reason = f"no mask within {limit_s:g} s"
                self._on_mask_missing(session, job, reason, is_late=True)

    # --- messages -------------------------------------------------------------------------------

    def _open(self, message: Open, now: float) -> None:
        check_terms(message)
        adapter = adapter_number(message.adapter, self._runner.config.lora_modules)
        session = self._table.open(message, now)
        if session is None:
            return
        session.adapter = adapter
        self._end_job(session)
        session.history = None
        if has_penalties(message.sampling):
            num_ids = self._runner.num_input_ids
            session.history = TokenHistory(num_ids, message.prompt_len, session.tokens.ids)
        if message.constraint is not None:
            self._masks.open(message.session_id, message.constraint, message.matcher)

    def _close(self, session_id: str, epoch: int | None) -> None:
        session = self._table.close(session_id, epoch)
        if session is not None:
            self._end_job(session)
            self._masks.close(session_id)

    def _take(self, message: EngineQuestion, reply_to: object, now: float) -> None:
        session, replies = self._table.admit(message, reply_to, now)
        for reply in replies:
            self._jobs.send(reply_to, reply)
        if session is None:
            return
        self._end_job(session)
        if replies:
            return
        reason = complaint(
            message,
            session.opened,
            num_input_ids=self._runner.num_input_ids,
            vocab_size=self._runner.vocab_size,
        )
        if reason:
            self._fail(session, "invalid", reason)
            return
        self._begin(session, message, now)
        self._masks.flush()

    def _fail(self, session: Session, code: FailureCode, message: str) -> None:
        """Answer the session's current message with a failure; the session stays open."""
        self._end_job(session)
        self._jobs.answer(
            session,
            Failed(session_id=session.session_id, seq=session.seq, code=code, message=message),
        )

    # --- passes -----------------------------------------------------------------------------------

    def _run_pass(self, rows: list[PlannedRows]) -> None:
        started_s = self._clock()
        self.pass_rows = sum(planned.num_pass_rows for planned in rows)
        logits = self._runner.forward(self._side_paths.begin(rows))
        _hand_out(logits, rows)
        self._keep_states(rows)
        self._masks.collect(0.0)
        self._complete(rows, logits, started_s)

    def _complete(self, rows: list[PlannedRows], logits: Tensor | None, started_s: float) -> None:
        """Sample for every job that has logits and masks: those of the pass and those held."""
        in_pass = [(planned.session, planned.job) for planned in rows if planned.num_logits]
        ready = [(session, job) for session, job in in_pass if is_drawable(job)]
        late = self._jobs.released(in_pass)
        # All logits are sampled from where they lie if every row of the pass can be, and no other.
        num_logits = 0 if logits is None else len(logits)
        is_whole = not late and sum(num_drawable(job) for _, job in ready) == num_logits
        sampled = self._sample(ready + late, logits if is_whole else None)
        if rows and not sampled:
            self._runner.wait()  # nothing was fetched, and the pass is timed to its end
        now = self._clock()
        if rows:
            self._note_pass(rows, now - started_s, now)
        for _, job in in_pass:
            if job.logits is not None and not is_drawable(job):
                # The pass's own tensors may be used again.
                job.logits = job.logits.clone()
                job.held_since_s = now
        for _, job in late:
            job.mask_ms += (now - job.held_since_s) * 1e3
        for (session, job), tokens in zip(ready + late, sampled, strict=True):
            job.logits = None
            legal = legal_prefix(job, tokens)
            if legal:
                self._on_sampled(session, job, legal, now)
            else:
                self._on_mask_missing(session, job, "no token is allowed", is_late=False)
        self._side_paths.end()
        self._publish([*(p.session for p in rows), *(session for session, _ in late)])
        self._masks.flush()

    def _keep_states(self, rows: list[PlannedRows]) -> None:  # noqa: B027  (an engine need not)
        """Keep what a pass leaves for drafts of the engine's own."""

    def _publish(self, sessions: list[Session]) -> None:
        """Let others find what was computed for these."""
        self._prefix_cache.publish(sessions)

    def _note_pass(self, rows: list[PlannedRows], duration_s: float, now: float) -> None:
        """Take in what a pass took; first the times, which all the others read."""
        num_rows = sum(planned.num_pass_rows for planned in rows)
        self._times.note(num_rows, duration_s, now)
        self._planner.note_pass(rows, duration_s)
        for planned in rows:
            planned.job.end_pass(duration_s, planned.num_pass_rows, num_rows, len(rows))
        self._totals.note(rows, duration_s)


def _hand_out(logits: Tensor, rows: list[PlannedRows]) -> None:
    """Give each session what the pass computed for it, in the order of `rows`.

    A session's logits of prompt rows come first. Those that its job samples from follow: its last
    rows, then its side paths.

    Args:
        logits: [R, V].
        rows: of the pass.
    """
    offset = 0
    for planned in rows:
        stop = planned.start + planned.num_rows
        planned.session.num_computed_tokens = stop
        planned.session.copied_block = None
        if num_prompt := planned.num_prompt_logits:
            first = stop - planned.num_logits - num_prompt
            note_prompt_logits(planned.session, first, logits[offset : offset + num_prompt])
            offset += num_prompt
        if planned.num_logits:
            end = offset + planned.num_logits + planned.num_side_rows
            planned.job.logits = logits[offset:end]
            offset = end
