"""Drafts that the target makes itself, by heads on its states or by its own first layers.

They cost no step of another engine and no message. The session's next row and its draft are in the
next pass after a verdict. `heads.py`, `mtp.py` and `early_exit.py` draft. `lengths.py` chooses how
much, and `trees.py` if drafts have several candidates for a place.

A draft is sampled like the target's tokens, with the noise of its positions. So under `coupled` the
text is the same as without drafts. A rule may ask for the distribution that a token was sampled
from. The likeliest token is then taken, for certain. Penalties and masks are the verification's
alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from models.costs.pass_times import PassTimes
from models.engine.drafting.early_exit import ExitDrafter
from models.engine.drafting.heads import HeadsDrafter
from models.engine.drafting.lengths import DraftLengths
from models.engine.drafting.mtp import MtpDrafter
from models.engine.drafting.side_paths import keep_side_states
from models.engine.drafting.steps import Ranked
from models.engine.drafting.trees import DraftTrees, Shape, num_places, plant
from models.engine.runner import ModelRunner
from models.protocol.messages import Sampling
from models.protocol.token_sequence import num_common
from models.sampling.draft_probs import certain_row
from models.sampling.verification import needs_draft_probs
from models.scheduler.sessions import Job, PlannedRows, Session

_LIKELIEST = Sampling(temperature=0)


class Drafted(NamedTuple):
    """A session whose next row is to have a draft behind it."""

    session: Session
    job: Job


class _Round(NamedTuple):
    jobs: list[Job]
    num_tokens: int  # tokens of each draft
    num_tree_rows: int  # 0: they are chains
    began_s: float
    is_usual: bool  # its drafts follow others, so there was nothing to make up for


class OwnDrafter(Protocol):
    """Drafts for some sessions at once, from the states of their newest rows."""

    num_tokens: int  # the longest draft
    max_tokens: int  # the longest that a message may ask for
    has_all_paths: bool  # candidates of a place go with any before them, not with first ones only

    def keep_states(self, rows: Sequence[PlannedRows], states: Tensor) -> None:
        """Keep states [R, F] of the rows of a pass, as far as they are of use."""
        ...

    def can_draft(self, session: Session) -> bool:
        """Return whether its inputs are there: all rows before that of the newest token."""
        ...

    def fill_blocks(self, sessions: Sequence[Session], *, is_used: bool) -> None:
        """Have keys for all rows of these sessions' whole blocks, which others may share next.

        Args:
            sessions: whose rows were computed.
            is_used: whether drafts pay at present; if not, generated rows need none.
        """
        ...

    def rank(
        self,
        sessions: Sequence[Session],
        samplings: Sequence[Sampling],
        num_tokens: int,
        num_ranks: int,
    ) -> list[Ranked]:
        """Candidates for at most `num_tokens` ids behind each session's tokens.

        Those of rank 0 are the draft; all go with first candidates before them, unless
        `has_all_paths`.

        Args:
            sessions: all of which `can_draft`; their last row is to come next.
            samplings: how each is drawn; positions are those behind its tokens.
            num_tokens: at least 1.
            num_ranks: candidates of a place, the likeliest first.
        """
        ...


class OwnDrafts:
    """Drafts for all sessions of an engine whose runner has what drafts.

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
        layer = runner.draft_layer
        if layer is None:
            self._drafter = HeadsDrafter(runner)
        elif layer.takes_states:
            self._drafter = MtpDrafter(runner, layer.num_tokens)
        else:
            self._drafter = ExitDrafter(runner, layer.num_tokens)
        self._clock = clock
        self._lengths = DraftLengths(self._drafter.num_tokens, times)
        self._trees: DraftTrees | None = None
        if runner.takes_trees:
            has_all_paths = self._drafter.has_all_paths
            self._trees = DraftTrees(self._lengths, times, has_all_paths=has_all_paths)
        self._last: _Round | None = None

    def fix(self, num_tokens: int, num_tree_rows: int) -> None:
        """Have all drafts of one size, whatever pays, to count what it brings.

        Args:
            num_tokens: of chains, as long as there are; 0: no drafts.
            num_tree_rows: of trees in their place; 0: chains.
        """
        self._lengths.fixed = min(num_tokens, self._drafter.num_tokens)
        if self._trees is not None:
            self._trees.fixed = num_tree_rows

    def keep_states(self, rows: Sequence[PlannedRows]) -> None:
        """Keep those of the pass of `rows` that has just been computed."""
        states = self._runner.hidden
        if states is not None:
            self._drafter.keep_states(rows, keep_side_states(rows, states))

    def fill_blocks(self, sessions: Sequence[Session]) -> None:
        """See `OwnDrafter`."""
        is_used = self._last is None or self._last.num_tokens > 0
        is_fixed = any(session.own_length for session in sessions)
        self._drafter.fill_blocks(sessions, is_used=is_used or is_fixed)

    def note(self, job: Job, tokens: Sequence[int]) -> None:
        """Note that a job's draft is verified.

        `tokens` are the target's, with the one after the accepted ones last.
        """
        drafted = [ids[0] for ids in job.candidates] or job.draft
        longest = self._drafter.num_tokens  # a message may ask for longer drafts
        drafted = drafted[: min(len(tokens), longest)]  # nothing is known of what would follow
        self._lengths.note(len(drafted), num_common(drafted, tokens))
        if self._trees is not None and job.mask is None and not job.draft_rows:
            self._trees.note(job.candidates[:longest], tokens)  # others never have trees

    @torch.inference_mode()
    def draft(self, wanted: Sequence[Drafted], max_rows: int) -> None:
        """Have the jobs verify a draft with their next row; without one they go on as they were.

        Args:
            wanted: at least one; each session's tokens end with the one its state has given.
            max_rows: that a job may have in a pass.
        """
        wanted = [each for each in wanted if self._drafter.can_draft(each.session)]
        by_length: dict[int, list[Drafted]] = {}
        for each in wanted:
            by_length.setdefault(each.session.own_length, []).append(each)
        chosen = by_length.pop(0, [])
        if chosen:
            self._draft_chosen(chosen, max_rows, is_alone=not by_length)
        for length, fixed in by_length.items():
            self._draw(fixed, min(length, self._drafter.max_tokens, max_rows - 1), [])

    def _draft_chosen(self, wanted: Sequence[Drafted], max_rows: int, *, is_alone: bool) -> None:
        """Drafts as long as pays. Nothing is learnt of time where others' come beside them."""
        began_s = self._clock()
        jobs = [each.job for each in wanted]
        last, num_tokens = self._last, min(self._lengths.choose(len(jobs)), max_rows - 1)
        if last is not None and last.jobs == jobs and last.is_usual:  # a new one came by message
            self._note_round(last, began_s - last.began_s)
        is_usual = is_alone and (num_tokens == 0 or (last is not None and last.num_tokens > 0))
        shape = [] if self._trees is None else self._trees.choose(len(jobs), num_tokens)
        num_tokens = min(num_places(shape) or num_tokens, max_rows - 1)
        self._last = _Round(jobs, num_tokens, len(shape), began_s, is_usual)
        self._draw(wanted, num_tokens, shape)
        if is_usual and num_tokens > 0:
            self._lengths.note_drafting(num_tokens, self._clock() - began_s)

    def _draw(self, wanted: Sequence[Drafted], num_tokens: int, shape: Shape) -> None:
        if num_tokens < 1:
            return
        ranked = self._rank([each.session for each in wanted], num_tokens, shape)
        for each, candidates in zip(wanted, ranked, strict=True):
            self._give(each, candidates, shape)

    def _note_round(self, last: _Round, taken_s: float) -> None:
        if last.num_tree_rows and self._trees is not None:
            self._trees.note_round(len(last.jobs), last.num_tree_rows, taken_s)
        else:
            self._lengths.note_round(len(last.jobs), last.num_tokens, taken_s)

    def _rank(self, sessions: Sequence[Session], num_tokens: int, shape: Shape) -> list[Ranked]:
        samplings = [_terms(each) for each in sessions]
        num_ranks = 1 if self._trees is None else self._trees.num_ranks(shape)
        return self._drafter.rank(sessions, samplings, num_tokens, num_ranks)

    def _give(self, drafted: Drafted, candidates: Ranked, shape: Shape) -> None:
        session, job = drafted.session, drafted.job
        length = len(session.tokens)
        pool = self._runner.pool
        longest = min(self._runner.max_model_len - 1, pool.num_blocks * pool.block_size)
        candidates = candidates[: max(0, longest - length)]
        tree = plant(session, shape, candidates)
        tokens = tree.first_path
        job.candidates, job.tree = candidates, tree if len(tree) > 1 + len(tokens) else None
        session.rewrite(length, tokens)
        job.draft, job.num_logits = tokens, 1 + len(tokens)
        job.has_own_draft = bool(tokens)
        if needs_draft_probs(session.opened.sampling):
            job.draft_rows = [certain_row(token) for token in tokens]


def _terms(session: Session) -> Sampling:
    sampling = session.opened.sampling
    return _LIKELIEST if needs_draft_probs(sampling) else sampling
