"""The target model's engine: verify drafts of all sessions in one ragged pass, then run on alone.

A `Verify` needs logits of its last k + 1 rows (anchor and draft). Decode and verify rows of all
sessions, and chunks of prompts, share each pass. `run_on` plain steps follow the verdict, until an
eos, the context's end, or the session's next message.

The session's tokens after a verdict are the committed and the accepted ones and the recovered or
bonus token. The next row writes the KV of that last token. A session without KV blocks waits here
and is computed again from its tokens. A model's heads may draft for plain steps, from the states of
the pass before (`drafting.own`).
"""

from __future__ import annotations

from torch import Tensor

from models.engine.base import Engine
from models.engine.choices.forks import Forks, Weighing
from models.engine.choices.scoring import draw_choice
from models.engine.drafting.own import Drafted, OwnDrafts
from models.engine.jobs import Outgoing
from models.engine.logprobs import note_logprobs
from models.engine.runner import ModelRunner
from models.engine.sampler import note_inspections, verify_rows
from models.protocol.messages import (
    Choose,
    Chosen,
    EngineQuestion,
    Inspection,
    Verdict,
    Verify,
)
from models.sampling.draft_probs import DraftRow, certain_row, unpack
from models.sampling.verification import (
    Acceptance,
    accept_in_tree,
    accept_matching,
    needs_draft_probs,
)
from models.scheduler.batch_window import BatchWindow
from models.scheduler.sessions import Job, PlannedRows, Session


class TargetEngine(Engine):
    """Answers `Verify` with a `Verdict` for the draft and one for each plain step.

    Attributes:
        own_drafts: to look at, and to fix for a measurement; None: nothing drafts here.
    """

    default_mask_wait_s = 2.0  # then a session's message fails

    def _set_up(self, runner: ModelRunner) -> None:
        self._window = BatchWindow(self._times)
        drafts_itself = runner.drafts_itself
        self.own_drafts = OwnDrafts(runner, self._times, self._clock) if drafts_itself else None
        self._undrafted: list[Drafted] = []  # those whose next rows may have a draft behind them
        self._forks = Forks(
            runner.pool, self._jobs, runner.max_num_batched_tokens, runner.vocab_size
        )

    def wait_s(self, now: float) -> float:
        """See `BatchWindow`; nobody waits while there is nothing to compute or to complete."""
        if not self._jobs or self._jobs.are_any_held():
            return 0.0
        return self._window.wait_s(now)

    def _begin(self, session: Session, message: EngineQuestion, now: float) -> None:
        match message:
            case Verify():
                self._begin_verify(session, message, now)
            case Choose():
                self._begin_choose(session, message, now)
            case _:
                self._fail(session, "invalid", "a target engine drafts nothing")

    def _begin_verify(self, session: Session, message: Verify, now: float) -> None:
        length = message.base_len + len(message.tokens)
        max_model_len = self._runner.max_model_len
        if length >= max_model_len:
            self._fail(
                session,
                "context_too_long",
                f"{length} tokens leave no room for another in a context of {max_model_len}",
            )
            return
        try:
            draft_rows = self._draft_rows(session, message)
        except ValueError as error:
            self._fail(session, "invalid", str(error))
            return
        # Draft tokens without a row are refused, which is always right: accepted + 1 must fit.
        draft = message.draft[: min(max_model_len - length, self._planner.max_logits) - 1]
        job = Job(
            seq=message.seq,
            ready_s=now,
            num_logits=len(draft) + 1,
            steps_left=message.run_on,
            draft=draft,
            draft_rows=draft_rows[: len(draft)],
            drafts_itself=message.own_drafts and self.own_drafts is not None,
            inspection=Inspection() if message.inspects else None,
        )
        is_next = session.tokens.ids[message.base_len :] == message.tokens
        session.own_length = message.own_length if job.drafts_itself else 0
        self._start(session, message, job)
        if job.drafts_itself and not draft and is_next:
            self._undrafted.append(Drafted(session, job))

    def _begin_choose(self, session: Session, message: Choose, now: float) -> None:
        length = message.base_len + len(message.tokens)
        longest, max_model_len = max(map(len, message.choices)), self._runner.max_model_len
        if length + longest > max_model_len:
            self._fail(
                session,
                "context_too_long",
                f"{length} tokens and a choice of {longest} do not fit in a context of "
                f"{max_model_len}",
            )
            return
        self._start(session, message, Job(message.seq, now, num_logits=1, steps_left=0))
        self._forks.begin(session, message.choices)

    def _start(self, session: Session, message: Verify | Choose, job: Job) -> None:
        """Make the session's tokens those of the message and the draft, and start its job."""
        length = message.base_len + len(message.tokens)
        session.rewrite(message.base_len, message.tokens + job.draft)
        session.agreed_len = length - 1
        session.is_past_prompt = length != session.opened.prompt_len
        if session.is_past_prompt:
            session.prompt_logprobs = []
        away_s = message.away_ms / 1e3 if isinstance(message, Verify) else 0.0
        self._window.note_message(session.session_id, job.ready_s, job.num_logits, away_s)
        session.committed_len = length
        self._jobs.start(session, job)

    def _draft_rows(self, session: Session, message: Verify) -> list[DraftRow]:
        """Return the draft tokens' distributions; empty if the rule does not ask for them.

        Raises:
            ValueError: the message's distributions are none, or not those of its draft.
        """
        if not needs_draft_probs(session.opened.sampling):
            return []
        if message.draft_probs is None:
            return [certain_row(token_id) for token_id in message.draft]
        return unpack(message.draft_probs, message.draft, self._runner.vocab_size)

    def step(self) -> list[Outgoing]:
        """See `Engine.step`."""
        self._forks.share_blocks()
        self._draft()
        return super().step()

    def _keep_states(self, rows: list[PlannedRows]) -> None:
        if self.own_drafts is not None:
            self.own_drafts.keep_states(rows)

    def _publish(self, sessions: list[Session]) -> None:
        if self.own_drafts is not None:
            self.own_drafts.fill_blocks(sessions)  # others find what is whole
        super()._publish(sessions)

    def _everyone(self) -> list[Session]:
        return [*self._table, *self._forks.sessions]

    def _complete(self, rows: list[PlannedRows], logits: Tensor | None, started_s: float) -> None:
        weighed = self._forks.take(rows, self._clock())  # nothing is sampled from their rows
        super()._complete(rows, logits, started_s)
        self._draft()
        for weighing in weighed:
            if weighing.is_done:
                self._answer_choice(weighing)

    def _answer_choice(self, weighing: Weighing) -> None:
        session, job = weighing.session, weighing.session.job
        assert job is not None, f"session {session.session_id} weighs without a job"
        logprobs = weighing.logprobs
        index = draw_choice(logprobs, session.opened.sampling, len(session.tokens))
        now = self._clock()
        self._jobs.answer(
            session,
            Chosen(
                session_id=session.session_id,
                seq=job.seq,
                index=index,
                end_token=weighing.scores.end_token(index),
                logprobs=logprobs,
                timing=job.take_timing(now),
                token_logprobs=weighing.scores.entries(index),
                prompt_logprobs=self._prompt_logprobs(session, job),
                num_cached_tokens=session.take_cached_tokens(),
            ),
        )
        self._end_job(session)
        self._window.note_answer(session.session_id, now)

    def _sample(self, jobs: list[tuple[Session, Job]], whole: Tensor | None) -> list[list[int]]:
        sampled = verify_rows(jobs, whole)
        note_logprobs(jobs, sampled)
        note_inspections(jobs, sampled)
        return sampled

    def _on_sampled(self, session: Session, job: Job, tokens: list[int], now: float) -> None:
        eos_ids = session.opened.eos_ids
        length = len(session.tokens) - len(job.draft)
        verdict = self._verdict(session, job, tokens)
        # The draft's accepted tokens stay, and after them goes the recovered or the bonus token.
        session.rewrite(length + verdict.num_accepted, [verdict.token])
        if not session.opened.is_tentative:
            session.committed_len = len(session.tokens)
        is_last = (
            job.steps_left == 0
            or verdict.token in eos_ids
            or len(session.tokens) >= self._runner.max_model_len
        )
        self._answer_verdict(session, job, verdict, is_last=is_last)
        if is_last:
            self._end_job(session)
            self._window.note_answer(session.session_id, now)
            return
        self._window.note_step(session.session_id)
        job.part += 1
        job.steps_left -= 1
        job.draft, job.draft_rows, job.tree, job.side_states = [], [], None, None
        job.has_own_draft = False
        job.num_logits = 1
        job.ready_s = now
        if job.drafts_itself:
            self._undrafted.append(Drafted(session, job))
        else:
            self._jobs.ask_masks(session, job)

    def _verdict(self, session: Session, job: Job, tokens: list[int]) -> Acceptance:
        """Return the accepted part of the draft, which is among the session's tokens then."""
        if job.tree is None:
            return accept_matching(job.draft, tokens, session.opened.eos_ids)
        rows, token = accept_in_tree(job.tree, tokens, session.opened.eos_ids)
        self._side_paths.take(session, job, rows)
        return Acceptance(len(rows) - 1, token)

    def _draft(self) -> None:
        """Draft for sessions that go on, and ask for the masks of their rows."""
        wanted = [each for each in self._undrafted if each.session.job is each.job]
        self._undrafted = []
        if not wanted or self.own_drafts is None:
            return
        self.own_drafts.draft(wanted, self._planner.max_logits)
        for session, job in wanted:
            self._jobs.ask_masks(session, job)
        self._masks.flush()

    def _answer_verdict(
        self, session: Session, job: Job, verdict: Acceptance, *, is_last: bool
    ) -> None:
        last = len(session.tokens) - 1  # the verdict's own token is there already
        accepted = session.tokens.ids[last - verdict.num_accepted : last]
        is_own = job.has_own_draft
        if is_own and self.own_drafts is not None:
            self.own_drafts.note(job, [*accepted, verdict.token])
        self._jobs.answer(
            session,
            Verdict(
                session_id=session.session_id,
                seq=job.seq,
                part=job.part,
                num_accepted=0 if is_own else verdict.num_accepted,
                token=verdict.token,
                is_last=is_last,
                timing=job.take_timing(self._clock()),
                logprobs=job.logprobs[: verdict.num_accepted + 1],
                prompt_logprobs=self._prompt_logprobs(session, job),
                num_cached_tokens=session.take_cached_tokens(),
                own=accepted if is_own else [],
                num_own_drafted=job.num_drafted if is_own else 0,
                inspection=job.inspection,
            ),
        )

    @staticmethod
    def _prompt_logprobs(session: Session, job: Job) -> list[bytes]:
        """Return the prompt's logprobs for the verdict that brings the first generated token.

        The logprobs stay with the session until its messages show that the sender has that token.
        """
        is_wanted = job.part == 0 and not session.is_past_prompt
        return list(session.prompt_logprobs) if is_wanted else []

    def _on_mask_missing(self, session: Session, job: Job, reason: str, *, is_late: bool) -> None:
        self._fail(session, "mask_unavailable", reason)

    def _on_starved(self, session: Session) -> None:
        """Let the session wait: its job stays, and is planned again in every pass."""
        if self._forks.give_up_last_block(session):
            self._is_stalled = False

    def _on_oversized(self, session: Session) -> None:
        pool = self._runner.pool
        self._fail(
            self._forks.owner(session),
            "context_too_long",
            f"{len(session.tokens)} tokens do not fit in the KV cache "
            f"of {pool.num_blocks * pool.block_size}",
        )

    def _end_job(self, session: Session) -> None:
        super()._end_job(session)
        self._forks.end(session)
        self._window.note_end(session.session_id)

    def _close(self, session_id: str, epoch: int | None) -> None:
        super()._close(session_id, epoch)
        if self._table.get(session_id) is None:  # a message for another life closes nothing
            self._window.forget(session_id)

    def _note_pass(self, rows: list[PlannedRows], duration_s: float, now: float) -> None:
        super()._note_pass(rows, duration_s, now)
        self._window.note_pass(duration_s)
        self._note_forks(rows, duration_s)
        for planned in rows:
            if planned.is_prompt and not planned.num_logits:
                self._window.note_chunk(planned.session.session_id, planned.num_rows)

    def _note_forks(self, rows: list[PlannedRows], duration_s: float) -> None:
        """Count a pass's time for forks into the answers of the sessions that own them."""
        num_own: dict[Session, int] = {}
        for planned in rows:
            if planned.session.taker is not None:
                owner = self._forks.owner(planned.session)
                num_own[owner] = num_own.get(owner, 0) + planned.num_rows
        num_rows = sum(planned.num_pass_rows for planned in rows)
        for owner, num in num_own.items():
            if owner.job is not None:
                owner.job.end_pass(duration_s, num, num_rows, len(rows))
