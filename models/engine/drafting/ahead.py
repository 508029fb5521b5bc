"""Drafts ahead: the engine drafts on after a draft while the target verifies it.

The target will accept the first j tokens of a draft and say one of its own. That is the outcome.
The likeliest outcomes become branches: forks of the session, which are drafted on. They get a token
a step, while the engine has nothing else to do. The next question names the outcome. If a branch
has it, the branch's draft is the answer, and no step is waited for. The engine would have made the
same draft: rows do not depend on a pass's other rows. If no branch has it, it drafts as ever.

    draft [a, b, c]      branches: its next token, b's second candidate for c, a's for b, ...
    verdict (2, x)       the branch "a b x" has drafted d, e, f: that is the answer

A step has the branches that make most of its time. Their probabilities are added up, and divided by
the time of a pass with so many rows. Branches of all sessions share it.

Forks hold the session's whole KV blocks by reference and begin with a copy of its last one. They
are the first sessions to lose them. The idea is Saguaro's (2603.03251), which works in lock-step.
Here a miss costs its own session steps, and nobody else.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from statistics import median

import msgspec

from models.engine.drafting.outcomes import MAX_RANKS, Outcomes
from models.kv.block_pool import BlockPool
from models.protocol.token_sequence import num_common
from models.scheduler.sessions import Job, Session

_FORK_MARK = "\0"  # in a fork's id, between that of its session and a number
_YOUNGEST = math.inf  # order of all forks: they lose their blocks first, and none to each other
_LEAST_PROBABILITY = 0.02  # of a branch
_MAX_COPIED_IDS = 1 << 18  # ids of the prefix in all forks of a session; 16 bytes each
_NUM_TIMES_AWAY = 15  # newest times of sessions from an answer to the next question
_LATE = 3.0  # median deviations after which a session is not waited for
_MOST_HELD_S = 0.1  # that a step is ever held back at once


@dataclass(slots=True, eq=False)
class _Branch:
    """One outcome and what is drafted after it.

    Attributes:
        source: whose first tokens it has, and whose last block the fork begins with a copy of.
        num_kept: of these tokens.
        token: the target's own behind them; None: the trunk's, which its first row will say.
        probability: of the outcome.
        fork: has the text, once a step was worth it.
    """

    source: Session
    num_kept: int
    token: int | None
    probability: float
    fork: Session | None = None
    is_done: bool = False

    @property
    def first(self) -> int:
        """Number of tokens up to the outcome."""
        return self.num_kept + 1

    @property
    def has_lost_rows(self) -> bool:
        """True if its rows, or those that it would begin with a copy of, are gone."""
        if self.fork is None or self.fork.copied_block is not None:
            return self.source.num_computed_tokens == 0
        return self.fork.num_computed_tokens == 0


@dataclass(slots=True, eq=False)
class _Draft:
    """A draft that the target verifies now.

    Attributes:
        session: whose it is.
        made: the job that made it: draft, candidates, margins.
        num_tokens: to draft after each outcome.
        since_s: when it was answered.
        whole: probability that all of it is accepted.
        branches: the trunk, which goes on after all of it, is the first; None: not looked at yet.
        num_forked: of these.
    """

    session: Session
    made: Job
    num_tokens: int
    since_s: float
    whole: float = 0.0
    branches: list[_Branch] | None = None
    num_forked: int = 0

    @property
    def committed_len(self) -> int:
        """Tokens before the draft."""
        return len(self.session.tokens) - len(self.made.draft)

    @property
    def is_greedy(self) -> bool:
        """True if its tokens are the likeliest."""
        return self.session.opened.sampling.temperature == 0

    def to_step(self) -> list[_Branch]:
        """Return the branches that a step may draft for: no more have a fork than were asked."""
        branches = [branch for branch in self.branches or [] if not branch.is_done]
        begun = [branch for branch in branches if branch.fork is not None]
        others = [branch for branch in branches if branch.fork is None]
        others.sort(key=lambda branch: -branch.probability)
        most = min(self.made.num_branches, _MAX_COPIED_IDS // len(self.session.tokens))
        return begun + others[: max(0, most - self.num_forked)]


@dataclass(frozen=True, slots=True)
class Ready:
    """A draft that was made before it was asked for; it may have no tokens.

    Attributes:
        tokens: the draft.
        candidates, margins: of each of them.
        num_rows: of the text and the draft that are computed.
    """

    tokens: list[int] = field(default_factory=list)
    candidates: list[list[int]] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    num_rows: int = 0


class Ahead:
    """All that one draft engine drafts ahead.

    Args:
        pool: of the KV blocks.
        max_model_len: no text is drafted beyond it.
        pass_s: returns the time of a pass of so many rows.
    """

    def __init__(
        self, pool: BlockPool, max_model_len: int, pass_s: Callable[[float], float]
    ) -> None:
        self._pool = pool
        self._max_model_len = max_model_len
        self._pass_s = pass_s
        self._drafts: dict[Session, _Draft] = {}
        self._forks: dict[Session, tuple[_Draft, _Branch]] = {}
        self._left: list[Session] = []  # forks that nobody needs, whose blocks are not free yet
        self._outcomes = Outcomes()
        self._chosen: list[tuple[_Draft, _Branch]] | None = None  # None: something has changed
        self._away_s: deque[float] = deque(maxlen=_NUM_TIMES_AWAY)

    @property
    def forks(self) -> Iterable[Session]:
        """Sessions of the engine's own that hold blocks."""
        return [*self._forks, *self._left]

    @property
    def has_work(self) -> bool:
        """True if a step would draft something."""
        return bool(self._choice())

    def has(self, session: Session) -> bool:
        """Return whether it is a fork here."""
        return session in self._forks

    def begin(self, session: Session, job: Job, now: float) -> None:
        """Draft ahead of the draft that `job` has made, of which the last token has no row yet.

        Nothing is done before the draft has left.
        """
        self._leave(session)
        num_drafted = len(job.draft)
        room = self._max_model_len - len(session.tokens) - 1
        if num_drafted > 0 and len(job.candidates) == num_drafted and room > 0:
            self._drafts[session] = _Draft(session, job, min(job.num_asked, room), now)
            self._chosen = None

    def wait_s(self, now: float) -> float:
        """Return how long a step is to be held back, seconds.

        Questions that come during a step wait for its end. So it is held back while these waits,
        of all sessions that are due, are longer than what it saves.
        """
        chosen = self._choice()
        if not self._away_s or not chosen:
            return 0.0
        took_s = self._pass_s(len(chosen))
        away_s = median(self._away_s)
        late_s = away_s + _LATE * median(abs(each - away_s) for each in self._away_s)
        delay_s, longest_s = 0.0, 0.0
        for draft in self._drafts.values():
            passed_s = now - draft.since_s
            if passed_s < late_s:
                delay_s += min(took_s, max(0.0, passed_s + took_s - away_s))
                longest_s = max(longest_s, late_s - passed_s)
        saved_s = sum(branch.probability for _, branch in chosen) * self._pass_s(1)
        return min(longest_s, _MOST_HELD_S) if delay_s > saved_s else 0.0

    def next_step(self) -> list[Session]:
        """Return the forks to draft for; empty: none is worth a step."""
        self._choice()  # looks at new drafts: a session may have lost its rows before
        for draft in self._drafts.values():
            for branch in [one for one in draft.branches or [] if one.has_lost_rows]:
                self._drop(draft, branch)
        return [self._forked(draft, branch) for draft, branch in self._choice()]

    def take(self, fork: Session, tokens: Sequence[int], now: float) -> None:
        """Take in the token that a step has given a fork."""
        draft, branch = self._forks[fork]
        job, (token,) = _job_of(fork), tokens
        self._chosen = None
        if branch.token is None:  # the trunk's row after the whole draft
            branch.token = token
            (bonus,), (margin,) = job.candidates, job.margins
            job.candidates, job.margins = [], []
            draft.made.candidates.append(bonus)
            draft.made.margins.append(margin)
            share = self._outcomes.agreement(margin, is_greedy=draft.is_greedy)
            branch.probability = draft.whole * share
            self._add_others(draft, fork, branch.num_kept, bonus, draft.whole * (1.0 - share))
        fork.append(token)
        job.ready_s = now
        num_drafted = len(fork.tokens) - branch.first
        is_over = token in fork.opened.eos_ids or len(fork.tokens) >= self._max_model_len
        branch.is_done = is_over or num_drafted >= draft.num_tokens

    def answer(self, session: Session, base_len: int, tokens: Sequence[int]) -> Ready:
        """Give a session the blocks of the branch that its text has come to; return its draft.

        The session's tokens are left as they are, and nothing of it is drafted ahead any more.

        Args:
            session: with a question.
            base_len: tokens of it that stay.
            tokens: committed ones after these.
        """
        draft = self._drafts.get(session)
        if draft is None:
            return Ready()
        self._away_s.append(session.away_s)
        start = min(base_len, draft.committed_len)  # forks hold the same tokens before it
        text = [*session.tokens.ids[start:base_len], *tokens]
        self._learn(draft, text[draft.committed_len - start :])
        ready, fork = Ready(), _longest(draft.branches or [], start, text)
        if fork is not None:
            length, job = start + len(text), _job_of(fork)
            first = length - self._forks[fork][1].first
            drafted = fork.tokens.ids[length:]
            ready = Ready(
                drafted, job.candidates[first:], job.margins[first:], fork.num_computed_tokens
            )
            session.table, fork.table = fork.table, session.table
        self._leave(session)
        return ready

    def end(self, session: Session) -> None:
        """Forget what was drafted ahead for a session, and free its forks. Idempotent."""
        self._leave(session)
        self._free_left()

    def give_up(self, fork: Session) -> None:
        """Drop a fork that there are no blocks for."""
        self._drop(*self._forks[fork])

    def _choice(self) -> list[tuple[_Draft, _Branch]]:
        """Return the branches of the next step, the likeliest first."""
        if self._chosen is None:
            self._free_left()
            for draft in self._drafts.values():
                if draft.branches is None:
                    self._look_at(draft)
            self._chosen = self._choose()
        return self._chosen

    def _choose(self) -> list[tuple[_Draft, _Branch]]:
        waiting = [(draft, one) for draft in self._drafts.values() for one in draft.to_step()]
        waiting.sort(key=lambda each: -each[1].probability)
        best, best_rate, sum_ = 0, 0.0, 0.0
        for number, (_, branch) in enumerate(waiting, start=1):
            sum_ += branch.probability
            rate = sum_ / max(self._pass_s(number), 1e-9)
            if rate > best_rate:
                best, best_rate = number, rate
        return waiting[:best]

    def _look_at(self, draft: _Draft) -> None:
        """Add the branches of a draft, but for those that follow from the trunk's first row."""
        made, session = draft.made, draft.session
        ends, draft.whole = self._outcomes.of_draft(made.margins, is_greedy=draft.is_greedy)
        draft.branches = [_Branch(session, len(session.tokens), None, draft.whole)]
        for num_accepted, (ranked, share) in enumerate(zip(made.candidates, ends, strict=True)):
            self._add_others(draft, session, draft.committed_len + num_accepted, ranked, share)

    def _learn(self, draft: _Draft, said: Sequence[int]) -> None:
        """Take in the outcome, if the text is just one token behind accepted ones."""
        made = draft.made
        num_accepted = num_common(made.draft, said)
        if len(said) != num_accepted + 1:
            return
        rank: int | None = 0  # the trunk's row may be missing, and only the draft is judged then
        if num_accepted < len(made.candidates):
            ranked = made.candidates[num_accepted]
            rank = ranked.index(said[-1]) if said[-1] in ranked else None
        self._outcomes.learn(made.margins, num_accepted, rank, is_greedy=draft.is_greedy)

    def _add_others(
        self,
        draft: _Draft,
        source: Session,
        num_kept: int,
        ranked: Sequence[int],
        probability: float,
    ) -> None:
        """Add branches for the candidates behind the first, which share a probability."""
        for rank in range(1, MAX_RANKS):
            token, its_own = ranked[rank], probability * self._outcomes.ranks[rank]
            # Fewer tokens may be sampled than there are ranks, and nothing follows an eos.
            is_other = token not in ranked[:rank] and token not in source.opened.eos_ids
            if is_other and its_own >= _LEAST_PROBABILITY and draft.branches is not None:
                draft.branches.append(_Branch(source, num_kept, token, its_own))

    def _forked(self, draft: _Draft, branch: _Branch) -> Session:
        """Return the branch's fork, made when it is first needed."""
        if branch.fork is not None:
            return branch.fork
        session, source = draft.session, branch.source
        text = source.tokens.followed_by(())
        text.truncate(branch.num_kept)
        text.extend(() if branch.token is None else (branch.token,))
        draft.num_forked += 1
        name = f"{session.session_id}{_FORK_MARK}{draft.num_forked}"
        fork = branch.fork = Session(
            opened=msgspec.structs.replace(session.opened, session_id=name),
            order=_YOUNGEST,
            table=self._pool.new_table(),
            last_active_s=session.last_active_s,
            tokens=text,
            job=Job(session.seq, draft.since_s, 1, 0, num_ranks=MAX_RANKS),
            adapter=session.adapter,
        )
        num_rows = len(text) - 1
        num_whole = num_rows // self._pool.block_size
        held = source.table.block_ids
        fork.adopt_blocks(0, held[:num_whole])
        fork.num_computed_tokens = num_rows
        fork.copied_block = held[num_whole] if num_rows % self._pool.block_size else None
        self._forks[fork] = draft, branch
        return fork

    def _leave(self, session: Session) -> None:
        """Forget what was drafted ahead for a session; its forks hold their blocks for a while."""
        draft = self._drafts.pop(session, None)
        if draft is None:
            return
        self._chosen = None
        for branch in draft.branches or []:
            if branch.fork is not None:
                del self._forks[branch.fork]
                branch.fork.job = None
                self._left.append(branch.fork)

    def _free_left(self) -> None:
        for fork in self._left:
            fork.release_blocks()
        self._left.clear()

    def _drop(self, draft: _Draft, branch: _Branch) -> None:
        if draft.branches is not None:
            draft.branches.remove(branch)
        self._chosen = None
        if branch.fork is not None:
            del self._forks[branch.fork]
            branch.fork.job = None
            branch.fork.release_blocks()


def _job_of(fork: Session) -> Job:
    assert fork.job is not None, f"fork {fork.session_id!r} has no job"
    return fork.job


def _longest(branches: Sequence[_Branch], start: int, text: Sequence[int]) -> Session | None:
    """Return the fork that has drafted most behind `text`, which begins at `start`."""
    length = start + len(text)
    found = [
        branch.fork
        for branch in branches
        if branch.fork is not None
        and branch.first <= length < len(branch.fork.tokens)
        and branch.fork.tokens.ids[start:length] == text
        and not branch.has_lost_rows
    ]
    return max(found, key=lambda fork: len(fork.tokens), default=None)
