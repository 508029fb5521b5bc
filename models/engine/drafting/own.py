"""Drafts that the target makes itself, from the states of the rows it has just verified.

They cost no step of another engine and no message: after a verdict the session's next row and its
draft are in the next pass. How long drafts are is chosen for each pass from how often the token of
each place was accepted, where those before it were, and from what rounds with so many took, all
sessions together; now and then another length is tried. Who drafts: `heads.py`, `mtp.py`.

A draft is sampled as the target samples, with the noise of its positions, so under `coupled` the
text is what it would be without. Under a rule that asks what a token was sampled from, the
likeliest token is taken, for certain. Penalties and masks are the verification's alone.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Sequence
from statistics import median
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from models.costs.pass_times import PassTimes
from models.costs.running_mean import running_mean
from models.engine.drafting.heads import HeadsDrafter
from models.engine.drafting.mtp import MtpDrafter
from models.engine.runner import ModelRunner
from models.protocol.messages import Sampling
from models.sampling.draft_probs import certain_row
from models.sampling.verification import needs_draft_probs
from models.scheduler.sessions import Job, PlannedRows, Session

_PRIOR = 0.5  # of a head's token, those before it accepted
_LEAST_SHARE = 0.02  # weight of the newest token in a head's running mean; at first it is more
_TRY_EVERY = 64  # drafts; then each number of heads is tried in its turn
_TRY_UNKNOWN_EVERY = 16  # as long as it is not known what they take
_LEAST_GAIN = 1.03  # of drafts over none: what is measured is uncertain
_NUM_SAMPLES = 5  # durations that a median is of
_COST_SHARE = 0.1  # weight of the newest draft in the running mean of what heads take
_LIKELIEST = Sampling(temperature=0)


class Drafted(NamedTuple):
    """A session whose next row is to have a draft behind it."""

    session: Session
    job: Job


class OwnDrafter(Protocol):
    """Drafts for some sessions at once, from the states of their newest rows."""

    num_tokens: int  # the longest draft

    def keep_states(self, rows: Sequence[PlannedRows], states: Tensor) -> None:
        """Keep states [R, F] of the rows of a pass, as far as they are of use."""
        ...

    def fill_blocks(self, sessions: Sequence[Session]) -> None:
        """Have keys for all rows of these sessions' whole blocks, which others may share next."""
        ...

    def draw(
        self, sessions: Sequence[Session], samplings: Sequence[Sampling], num_tokens: int
    ) -> list[list[int]]:
        """At most `num_tokens` ids behind each session's tokens, whose last row is to come next.

        Args:
            sessions: each with the state of the row before that one.
            samplings: how each is drawn; positions are those behind its tokens.
            num_tokens: at least 1.
        """
        ...


class OwnDrafts:
    """Drafts for all sessions of an engine whose runner keeps states.

    Args:
        runner: has what drafts.
        times: of its passes.
        clock: seconds, monotonic.
    """

    def __init__(
        self, runner: ModelRunner, times: PassTimes, clock: Callable[[], float] = time.perf_counter
    ) -> None:
        self._runner = runner
        self._drafter: OwnDrafter
        if runner.draft_layer is not None:
            self._drafter = MtpDrafter(runner, runner.draft_layer.num_tokens)
        else:
            self._drafter = HeadsDrafter(runner)
        self._times = times
        self._clock = clock
        self._rates = [_PRIOR] * self._drafter.num_tokens
        self._num_seen = [0] * self._drafter.num_tokens
        self._heads_s: float | None = None  # of a draft of all sessions
        self._num_drafts = 0
        # By sessions and heads: what it took from a draft to the next.
        self._rounds_s: dict[tuple[int, int], deque[float]] = {}
        self._last: tuple[list[Job], int, float] | None = None  # jobs, heads, since when

    def keep_states(self, rows: Sequence[PlannedRows]) -> None:
        """Keep those of the pass of `rows` that has just been computed."""
        states = self._runner.hidden
        assert states is not None, "the runner keeps none"
        self._drafter.keep_states(rows, states)

    def fill_blocks(self, sessions: Sequence[Session]) -> None:
        """See `OwnDrafter`."""
        self._drafter.fill_blocks(sessions)

    def note(self, num_drafted: int, num_accepted: int) -> None:
        """Of a draft so many tokens were accepted, none behind the first that was not."""
        for place in range(min(num_drafted, num_accepted + 1)):
            self._num_seen[place] += 1
            share = max(_LEAST_SHARE, 1.0 / (2 + self._num_seen[place]))
            is_right = float(place < num_accepted)
            self._rates[place] = running_mean(self._rates[place], is_right, share)

    def note_round(self, num_sessions: int, num_heads: int, taken_s: float) -> None:
        """So many sessions whose drafts so many heads made were back after `taken_s`."""
        kept = self._rounds_s.setdefault((num_sessions, num_heads), deque(maxlen=_NUM_SAMPLES))
        kept.append(taken_s)

    def num_heads(self, num_sessions: int) -> int:
        """How many heads are to draft for so many sessions: what brings most tokens a second."""
        self._num_drafts += 1
        counts = range(len(self._rates) + 1)
        unknown = [count for count in counts if not self._is_measured(num_sessions, count)]
        if unknown and self._num_drafts % _TRY_UNKNOWN_EVERY == 0:
            return unknown[0]
        num_tries, rest = divmod(self._num_drafts, _TRY_EVERY)
        if rest == 0:
            return num_tries % len(counts)
        rates = []
        num_tokens, survival = 1.0, 1.0
        for count in counts:
            if count > 0:
                survival *= self._rates[count - 1]
                num_tokens += survival
            rates.append(num_tokens / (self._expected_s(num_sessions, count) or math.inf))
        rates[0] *= _LEAST_GAIN
        return rates.index(max(rates))

    def _is_measured(self, num_sessions: int, num_heads: int) -> bool:
        return len(self._rounds_s.get((num_sessions, num_heads), ())) > 1

    def _expected_s(self, num_sessions: int, num_heads: int) -> float:
        """What a round takes: as it was measured, else the pass and what heads take."""
        if self._is_measured(num_sessions, num_heads):
            return median(self._rounds_s[num_sessions, num_heads])
        pass_s = self._times.by_rows.at(num_sessions * (1 + num_heads))
        return pass_s + ((self._heads_s or 0.0) if num_heads > 0 else 0.0)

    @torch.inference_mode()
    def draft(self, wanted: Sequence[Drafted], max_rows: int) -> None:
        """Have the jobs verify a draft with their next row; without one they go on as they were.

        Args:
            wanted: at least one; each session's tokens end with the one its state has given.
            max_rows: that a job may have in a pass.
        """
        began_s = self._clock()
        wanted = [each for each in wanted if _has_state(each.session)]
        sessions = [each.session for each in wanted]
        if not sessions:
            return
        jobs = [each.job for each in wanted]
        if self._last is not None and self._last[0] == jobs:  # a new one has waited for its message
            self.note_round(len(jobs), self._last[1], began_s - self._last[2])
        num_heads = min(self.num_heads(len(jobs)), max_rows - 1)
        self._last = jobs, num_heads, began_s
        if num_heads < 1:
            return
        drafts = self._drafter.draw(sessions, [_terms(each) for each in sessions], num_heads)
        for each, tokens in zip(wanted, drafts, strict=True):
            self._give(each, tokens)
        self._heads_s = running_mean(self._heads_s, self._clock() - began_s, _COST_SHARE)

    def _give(self, drafted: Drafted, tokens: list[int]) -> None:
        session, job = drafted.session, drafted.job
        length = len(session.tokens)
        pool = self._runner.pool
        longest = min(self._runner.max_model_len - 1, pool.num_blocks * pool.block_size)
        tokens = tokens[: max(0, longest - length)]
        for place, token in enumerate(tokens):
            if token in session.opened.eos_ids:  # nothing follows it
                tokens = tokens[:place]
                break
        session.rewrite(length, tokens)
        job.draft, job.num_logits = tokens, 1 + len(tokens)
        job.has_own_draft = bool(tokens)
        if needs_draft_probs(session.opened.sampling):
            job.draft_rows = [certain_row(token) for token in tokens]


def _has_state(session: Session) -> bool:
    """Whether the state is there that gave its newest token, whose row is the next."""
    newest = len(session.tokens) - 1
    return session.num_computed_tokens == newest == session.states.stop > session.states.first


def _terms(session: Session) -> Sampling:
    sampling = session.opened.sampling
    return _LIKELIEST if needs_draft_probs(sampling) else sampling
