"""The draft model's engine: catch up with the committed tokens, then draft k tokens, one a step.

The rule `coupled` samples with the target's noise and the target's score function. So a drafted
token is the one that the target would sample if their logits agreed. The rule `rejection` samples
from a truncated distribution that goes with the draft. Sessions join and leave between steps. The
first step waits a moment for drafts that are asked for with it (`scheduler.gathering`). A draft
ends early rather than holding others up. That is so at a late or missing mask, at its deadline, and
when there is no room. A session's KV cache lags its tokens by the last drafted one,
which no pass has read yet.

A message may bring a guess of what the draft will say (`Propose.guess`). One pass then samples in
all its rows. The tokens that equal the guess are drafted, and so is the first one that does not. If
the whole guess is right, the token behind it is drafted too. The same number of single steps would
draft the same tokens. Each token is sampled from the same text with the same noise.

A message may also ask for all of these rows at once (`Propose.replays`). They are the tokens that
the model would have drafted along a known text. It may let the engine draft on while the target
verifies (`Propose.ahead`, `drafting.ahead`).

Steps of drafts that need nothing from the host run as one chain on a GPU (`drafting.chain`).
"""

from __future__ import annotations

from torch import Tensor

from models.costs.running_mean import running_mean
from models.engine.base import Engine
from models.engine.drafting.ahead import Ahead
from models.engine.drafting.chain import ChainLink, draw_chain, is_chainable, reserve_chain
from models.engine.drafting.ended_texts import EndedTexts
from models.engine.drafting.outcomes import MAX_RANKS
from models.engine.jobs import Outgoing
from models.engine.runner import ModelRunner
from models.engine.sampler import draft_rows
from models.protocol.messages import Cut, EngineQuestion, Open, Proposal, Propose
from models.sampling.draft_probs import pack
from models.sampling.verification import accept_matching
from models.scheduler.gathering import Gathering
from models.scheduler.sessions import Job, PlannedRows, Session

_STEP_SHARE = 0.2  # weight of the newest draft step in their running mean


class DraftEngine(Engine):
    """Answers `Propose` with a `Proposal`.

    Attributes:
        chains: whether several steps are sampled at a time where that is possible. So it is on a
            GPU, where the host would be waited for in each step, if no other rank must know every
            id. May be set before the first step.
        ended_texts: of its sessions, for whoever compares it with another.
    """

    default_mask_wait_s = 0.02  # then the draft ends there

    def _set_up(self, runner: ModelRunner) -> None:
        self.ended_texts = EndedTexts()
        self._ahead = Ahead(runner.pool, runner.max_model_len, self._times.by_rows.at)
        self.chains = runner.device.type == "cuda" and runner.config.tensor_parallel_size == 1
        if self.chains:
            runner.capture_chains()
        self._gathering = Gathering()
        self._step_s: float | None = None  # running mean of passes without prompts
        self._host_s = 0.0  # the same of what a `step` takes beside its pass
        self._pass_s: float | None = None  # time of the newest `step`'s pass

    @property
    def forks(self) -> list[Session]:
        """Texts that are drafted ahead, to look at."""
        return list(self._ahead.forks)

    def wait_s(self, now: float) -> float:
        """Return how long drafts that were asked for wait for others that begin with them."""
        if self._jobs.has_replies:
            return 0.0
        if self._jobs:
            return self._gathering.wait_s(self._step_s or 0.0, now)
        return self._ahead.wait_s(now)

    def step(self) -> list[Outgoing]:
        """See `Engine.step`; a draft that is there leaves before the next pass."""
        if self._jobs.has_replies:
            return self._jobs.take_replies()
        self._pass_s, began_s = None, self._clock()
        if self._jobs:
            self._gathering.note_step()
        replies = super().step()
        if self._pass_s is not None:
            host_s = self._clock() - began_s - self._pass_s
            self._host_s = running_mean(self._host_s, host_s, _STEP_SHARE)
        return replies

    def _close(self, session_id: str, epoch: int | None) -> None:
        session = self._table.get(session_id)
        super()._close(session_id, epoch)
        if session is None or self._table.get(session_id) is session:
            return
        self._ahead.end(session)
        if not session.is_replay:
            self.ended_texts.note(session.opened, session.tokens.ids[: session.committed_len])

    def _open(self, message: Open, now: float) -> None:
        session = self._table.get(message.session_id)
        if session is not None and session.opened != message:
            self._ahead.end(session)
        super()._open(message, now)

    @property
    def has_work(self) -> bool:
        """See `Engine.has_work`."""
        return super().has_work or self._ahead.has_work

    def _waiting(self) -> list[Session]:
        return super()._waiting() or self._ahead.next_step()

    def _everyone(self) -> list[Session]:
        return [*self._table, *self._ahead.forks]

    def _begin(self, session: Session, message: EngineQuestion, now: float) -> None:
        if not isinstance(message, Propose):
            self._fail(session, "invalid", "a draft engine verifies nothing")
            return
        length = message.base_len + len(message.tokens)
        ready = self._ahead.answer(session, message.base_len, message.tokens)
        draft = ready.tokens[: message.num_draft_tokens]
        most = 0 if draft else self._max_guess(length, message.num_draft_tokens)
        guess = message.guess[:most]
        session.rewrite(message.base_len, message.tokens + draft + guess)
        session.agreed_len = length - 1
        session.committed_len = length
        if draft:
            session.num_computed_tokens = min(ready.num_rows, len(session.tokens) - 1)
            self._prefix_cache.publish([session])
        session.is_replay = message.replays
        is_ahead = message.ahead > 0 and not message.replays and is_chainable(session)
        job = Job(
            seq=message.seq,
            ready_s=now,
            num_logits=1 + len(guess),
            steps_left=message.num_draft_tokens - len(draft) - 1,
            deadline_s=now + message.deadline_ms / 1e3,
            draft=draft,
            candidates=ready.candidates[: len(draft)],
            margins=ready.margins[: len(draft)],
            guess=guess,
            replays=message.replays,
            mask_wait_s=message.mask_wait_ms / 1e3 or None,
            num_ranks=MAX_RANKS if is_ahead else 1,
            num_asked=message.num_draft_tokens,
            num_branches=message.ahead if is_ahead else 0,
            num_ahead=len(draft),
        )
        if (cut := self._end_of(session, job)) is not None:
            session.job = job
            self._finish(session, job, cut)
            return
        self._jobs.start(session, job)
        self._gathering.note_asked(len(self._jobs), now)

    def _end_of(self, session: Session, job: Job) -> Cut | None:
        """Return why the draft ends here; None: another step follows."""
        if job.draft and job.draft[-1] in session.opened.eos_ids:
            return "eos"
        if job.steps_left < 0:
            return ""
        return "context" if len(session.tokens) >= self._runner.max_model_len else None

    def _max_guess(self, length: int, num_draft_tokens: int) -> int:
        """Tokens that a guess after `length` tokens may have: its last row samples one more."""
        room = self._runner.max_model_len - length
        return max(0, min(num_draft_tokens, room, self._planner.max_logits) - 1)

    def _run_pass(self, rows: list[PlannedRows]) -> None:
        num_steps = self._chain_length(rows)
        if num_steps > 1:
            self._run_chain(rows, num_steps)
        else:
            super()._run_pass(rows)

    def _chain_length(self, rows: list[PlannedRows]) -> int:
        """Steps that all sessions of a pass can take together; 1: no chain."""
        if not self.chains or not all(p.num_logits == p.job.num_ranks == 1 for p in rows):
            return 1
        if not all(is_chainable(planned.session) for planned in rows):
            return 1
        if self._jobs.are_any_held():
            return 1  # drafts that were waiting for their masks go on with the next step
        room = min(self._runner.max_model_len - len(planned.session.tokens) for planned in rows)
        num_steps = min(room, *(planned.job.steps_left + 1 for planned in rows))
        if self._step_s:
            left_s = min(planned.job.deadline_s for planned in rows) - self._clock()
            num_steps = int(min(num_steps, left_s / self._step_s))
        return num_steps

    def _run_chain(self, rows: list[PlannedRows], num_steps: int) -> None:
        """Sample `num_steps` tokens for each session, as that many passes would have."""
        started_s = self._clock()
        links = [
            ChainLink(
                table=planned.session.table,
                start=planned.start,
                token_ids=planned.session.tokens.ids[planned.start :],
                sampling=planned.session.opened.sampling,
            )
            for planned in rows
        ]
        num_steps = reserve_chain(links, num_steps)
        sampled = draw_chain(self._runner, links, num_steps)
        now = self._clock()
        for step in range(num_steps):
            steps = [p if step == 0 else _next_step(p, step) for p in rows]
            self._note_step(steps, (now - started_s + self._host_s) / num_steps, now)
        self._pass_s = now - started_s
        for planned, tokens in zip(rows, sampled, strict=True):
            session, job = planned.session, planned.job
            computed_len = len(session.tokens)
            for token in tokens:
                session.num_computed_tokens = computed_len
                self._on_sampled(session, job, [token], now)
                if session.job is not job:
                    break
                computed_len += 1
        # Looking at the KV waits for the device, which has been waited for just now.
        self._prefix_cache.publish([planned.session for planned in rows])
        self._masks.flush()

    def _sample(self, jobs: list[tuple[Session, Job]], whole: Tensor | None) -> list[list[int]]:
        return draft_rows(jobs, whole)

    def _on_sampled(self, session: Session, job: Job, tokens: list[int], now: float) -> None:
        if job.replays:
            job.draft = tokens
            self._finish(session, job, "")
            return
        if self._ahead.has(session):
            self._ahead.take(session, tokens, now)
            return
        num_right, token = accept_matching(job.guess, tokens, session.opened.eos_ids)
        length = len(session.tokens) - len(job.guess)
        said = [*job.guess[:num_right], token]
        session.rewrite(length + num_right, [token])
        job.guess, job.num_logits = [], 1
        job.draft += said
        del job.draft_rows[len(job.draft) :]
        del job.candidates[len(job.draft) :], job.margins[len(job.draft) :]
        job.steps_left -= num_right + 1
        if (cut := self._end_of(session, job)) is not None:
            self._finish(session, job, cut)
        else:
            job.ready_s = now
            self._jobs.ask_masks(session, job)

    def _on_mask_missing(self, session: Session, job: Job, reason: str, *, is_late: bool) -> None:
        self._finish(session, job, "mask_late" if is_late else "mask_missing")

    def _on_starved(self, session: Session) -> None:
        if self._ahead.has(session):
            self._ahead.give_up(session)
        elif session.job is not None and not self._drop_guess(session, session.job):
            self._finish(session, session.job, "starved")

    def _on_oversized(self, session: Session) -> None:
        if self._ahead.has(session):
            self._ahead.give_up(session)
        elif session.job is not None and not self._drop_guess(session, session.job):
            self._finish(session, session.job, "context")

    def _drop_guess(self, session: Session, job: Job) -> bool:
        """Drop the job's guess, so that it needs less room; return whether there was one."""
        if not job.guess:
            return False
        session.rewrite(len(session.tokens) - len(job.guess), [])
        job.guess, job.num_logits = [], 1
        self._jobs.ask_masks(session, job)
        self._masks.flush()
        self._is_stalled = False
        return True

    def _expire(self, now: float) -> None:
        super()._expire(now)
        for session, job in self._jobs:
            if now >= job.deadline_s:
                self._finish(session, job, "deadline")

    def _finish(self, session: Session, job: Job, cut: Cut) -> None:
        self._end_job(session)
        self._jobs.answer(
            session,
            Proposal(
                session_id=session.session_id,
                seq=job.seq,
                tokens=job.draft,
                draft_probs=pack(job.draft_rows[: len(job.draft)]),
                timing=job.take_timing(self._clock()),
                step_ms=(self._step_s or 0.0) * 1e3,
                cut=cut,
                num_ahead=job.num_ahead,
            ),
        )
        if job.num_branches > 0 and not cut:
            self._ahead.begin(session, job, self._clock())

    def _note_pass(self, rows: list[PlannedRows], duration_s: float, now: float) -> None:
        """Note the pass and the host's time beside it: a quarter of a small model's step."""
        self._note_step(rows, duration_s + self._host_s, now)
        self._pass_s = duration_s

    def _note_step(self, rows: list[PlannedRows], duration_s: float, now: float) -> None:
        super()._note_pass(rows, duration_s, now)
        if self._ahead.has(rows[0].session):
            return
        if all(planned.num_logits == 1 for planned in rows) and sum(
            planned.num_rows for planned in rows
        ) <= 2 * len(rows):  # after a full accept a draft step has two rows
            self._step_s = running_mean(self._step_s, duration_s, _STEP_SHARE)


def _next_step(planned: PlannedRows, step: int) -> PlannedRows:
    """Return the row of a later step of the same session."""
    start = planned.start + planned.num_rows + step - 1
    return PlannedRows(planned.session, planned.job, start, 1, 1)
