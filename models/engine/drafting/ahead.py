"""Drafts ahead: the engine drafts on after a draft while the target verifies it.

The target will accept the first j tokens of a draft and say one of its own. That is the outcome.
The likeliest outcomes become branches. A branch is a fork of the session that is
drafted on, a token a step, while the engine has nothing else to do. The next question names the
outcome. If a branch has it, the branch's draft is the answer, and no step is waited for. It is the
same draft that the engine would have made, for rows do not depend on a pass's other rows. If no
branch has it, the engine drafts as ever.

    draft [a, b, c]      branches: its next token, b's second candidate for c, a's for b, ...
    verdict (2, x)       the branch "a b x" has drafted d, e, f: that is the answer

A step has the branches that make most of its time. Their probabilities are added up, and divided by
the time of a pass with so many rows. Branches of all sessions share it.

Forks hold the session's whole KV blocks by reference and begin with a copy of its last one. They
are the first to lose their blocks. The idea is Saguaro's (2603.03251), which works in lock-step.
Here a miss costs its own session steps, and nobody else.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

import msgspec

from models.costs.running_mean import running_mean
from models.engine.drafting.outcomes import MAX_RANKS, Outcomes
from models.kv.block_pool import BlockPool
from models.protocol.token_sequence import TokenSequence
from models.scheduler.sessions import Job, Session

_FORK_MARK = "\0"  # in a fork's id, between that of its session and a number
_YOUNGEST = math.inf  # order of all forks: they lose their blocks first, and none to each other
_LEAST_ODDS = 0.02  # of a branch
_AWAY_WEIGHT = 0.1  # of the newest time in which a session was away
_LATE = 3.0  # mean deviations after which a session is not waited for


@dataclass(slots=True, eq=False)
class _Branch:
    """One outcome and what is drafted after it.

    Attributes:
        text: with the outcome and its draft; its last token has no row yet.
        first: number of tokens up to the outcome.
        source: whose last block the fork begins with a copy of.
        odds: probability of the outcome.
        fork: has the text, once a step was worth it.
        job: the fork's, which notes candidates and margins.
    """

    text: TokenSequence
    first: int
    source: Session
    odds: float
    job: Job
    fork: Session | None = None
    is_done: bool = False

    @property
    def has_lost_rows(self) -> bool:
        """True if its rows, or those that it would begin with a copy of, are gone."""
        if self.fork is None or self.fork.copied_block is not None:
            return self.source.num_computed_tokens == 0
        return self.fork.num_computed_tokens == 0


@dataclass(slots=True, eq=False)
class _Verified:
    """A draft that the target verifies now.

    Attributes:
        session: whose it is.
        made: the job that made it: draft, candidates, margins.
        num_tokens: to draft after each outcome.
        odds: that all of it is accepted.
        since_s: when it was answered.
        branches: the trunk, which goes on after all of it, is the first.
        num_forked: of these.
    """

    session: Session
    made: Job
    num_tokens: int
    odds: float
    since_s: float
    branches: list[_Branch] = field(default_factory=list)
    num_forked: int = 0

    @property
    def committed_len(self) -> int:
        """Tokens before the draft."""
        return len(self.session.tokens) - len(self.made.draft)

    def allowed(self) -> list[_Branch]:
        """Return the branches that have a fork, and the likeliest others that may have one."""
        others = sorted((b for b in self.branches if b.fork is None), key=lambda one: -one.odds)
        begun = [branch for branch in self.branches if branch.fork is not None]
        return begun + others[: max(0, self.made.num_branches - self.num_forked)]

    @property
    def is_greedy(self) -> bool:
        """True if its tokens are the likeliest."""
        return self.session.opened.sampling.temperature == 0


@dataclass(frozen=True, slots=True)
class Ready:
    """A draft that was made before it was asked for; it may have no tokens.

    Attributes:
        tokens: the draft.
        candidates, margins: of each of them.
        num_rows: of the text and the draft that are computed.
        num_sessions: that drafted ahead side by side.
    """

    tokens: list[int] = field(default_factory=list)
    candidates: list[list[int]] = field(default_factory=list)
    margins: list[float] = field(default_factory=list)
    num_rows: int = 0
    num_sessions: int = 0


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
        self._verified: dict[Session, _Verified] = {}
        self._forks: dict[Session, tuple[_Verified, _Branch]] = {}
        self._outcomes = Outcomes()
        self._away_s: float | None = None  # mean time from a draft to the next question
        self._away_deviation_s = 0.0

    @property
    def forks(self) -> Iterable[Session]:
        """Sessions of the engine's own that hold blocks."""
        return self._forks

    @property
    def has_work(self) -> bool:
        """True if a step would draft something."""
        return bool(self._chosen())

    def begin(self, session: Session, job: Job, now: float) -> None:
        """Draft ahead of the draft that `job` has made, of which the last token has no row yet."""
        self.end(session)
        num_drafted = len(job.draft)
        room = self._max_model_len - len(session.tokens) - 1
        if num_drafted == 0 or len(job.candidates) != num_drafted or room < 1:
            return
        is_greedy = session.opened.sampling.temperature == 0
        ends, whole = self._outcomes.of_draft(job.margins, is_greedy=is_greedy)
        verified = _Verified(session, job, min(job.num_asked, room), whole, now)
        self._verified[session] = verified
        tokens = session.tokens
        self._add(verified, session, tokens.followed_by(()), len(tokens) + 1, whole)
        for num_accepted, odds in enumerate(ends):
            self._add_others(verified, session, num_accepted, job.candidates[num_accepted], odds)

    def wait_s(self, now: float) -> float:
        """Return how long a step is to be held back, seconds.

        Questions that come during a step wait for its end. So it is held back while these waits,
        of all sessions that are due, are longer than what it saves.
        """
        chosen = self._chosen()
        if self._away_s is None or not chosen:
            return 0.0
        took_s = self._pass_s(len(chosen))
        late_s = self._away_s + _LATE * self._away_deviation_s
        delay_s, longest_s = 0.0, 0.0
        for verified in self._verified.values():
            passed_s = now - verified.since_s
            if passed_s < late_s:
                delay_s += min(took_s, max(0.0, passed_s + took_s - self._away_s))
                longest_s = max(longest_s, late_s - passed_s)
        saved_s = sum(branch.odds for _, branch in chosen) * self._pass_s(1)
        return longest_s if delay_s > saved_s else 0.0

    def next_step(self) -> list[Session]:
        """Return the forks to draft for; empty: none is worth a step."""
        for verified in self._verified.values():
            for branch in [b for b in verified.branches if b.has_lost_rows]:
                self._drop(verified, branch)
        return [self._fork(verified, branch) for verified, branch in self._chosen()]

    def has(self, session: Session) -> bool:
        """Return whether it is a fork here."""
        return session in self._forks

    def take(self, fork: Session, tokens: Sequence[int], now: float) -> None:
        """Take in the token that a step has given a fork."""
        verified, branch = self._forks[fork]
        job, (token,) = branch.job, tokens
        if len(fork.tokens) < branch.first:  # the trunk's row after the whole draft
            (bonus,), (margin,) = job.candidates, job.margins
            job.candidates, job.margins = [], []
            verified.made.candidates.append(bonus)
            verified.made.margins.append(margin)
            share = self._outcomes.agreement(margin, is_greedy=verified.is_greedy)
            branch.odds = verified.odds * share
            odds = verified.odds * (1.0 - share)
            self._add_others(verified, fork, len(verified.made.draft), bonus, odds)
        fork.append(token)
        job.ready_s = now
        num_drafted = len(fork.tokens) - branch.first
        is_over = token in fork.opened.eos_ids or len(fork.tokens) >= self._max_model_len
        branch.is_done = is_over or num_drafted >= verified.num_tokens

    def answer(self, session: Session, base_len: int, tokens: Sequence[int]) -> Ready:
        """Give a session the blocks of the branch that its text has come to; return its draft.

        The session's tokens are left as they are, and nothing of it is drafted ahead any more.

        Args:
            session: with a question.
            base_len: tokens of it that stay.
            tokens: committed ones after these.
        """
        verified = self._verified.get(session)
        if verified is None:
            return Ready()
        self._note_away(session.away_s)
        start = min(base_len, verified.committed_len)  # forks hold the same tokens before it
        text = [*session.tokens.ids[start:base_len], *tokens]
        self._learn(verified, text[verified.committed_len - start :])
        ready, branch = Ready(), _longest(verified.branches, start, text)
        if branch is not None and branch.fork is not None:
            length = start + len(text)
            fork, first = branch.fork, length - branch.first
            ready = Ready(
                fork.tokens.ids[length:],
                branch.job.candidates[first:],
                branch.job.margins[first:],
                fork.num_computed_tokens,
                len(self._verified),
            )
            session.table, fork.table = fork.table, session.table
        self.end(session)
        return ready

    def end(self, session: Session) -> None:
        """Forget what was drafted ahead for a session, and free its forks. Idempotent."""
        verified = self._verified.pop(session, None)
        if verified is not None:
            for branch in list(verified.branches):
                self._drop(verified, branch)

    def give_up(self, fork: Session) -> None:
        """Drop a fork that there are no blocks for."""
        self._drop(*self._forks[fork])

    def _chosen(self) -> list[tuple[_Verified, _Branch]]:
        """Return the branches of the next step, the likeliest first."""
        waiting = [
            (verified, branch)
            for verified in self._verified.values()
            for branch in verified.allowed()
            if not branch.is_done
        ]
        waiting.sort(key=lambda each: -each[1].odds)
        best, best_rate, odds = 0, 0.0, 0.0
        for number, (_, branch) in enumerate(waiting, start=1):
            odds += branch.odds
            took_s = max(self._pass_s(number), 1e-9)
            if odds / took_s <= best_rate:
                break  # the following ones are less likely still
            best, best_rate = number, odds / took_s
        return waiting[:best]

    def _note_away(self, away_s: float) -> None:
        before = away_s if self._away_s is None else self._away_s
        self._away_s = running_mean(self._away_s, away_s, _AWAY_WEIGHT)
        deviation_s = abs(away_s - before)
        self._away_deviation_s = running_mean(self._away_deviation_s, deviation_s, _AWAY_WEIGHT)

    def _learn(self, verified: _Verified, said: Sequence[int]) -> None:
        """Take in the outcome, if the text is just one token behind accepted ones."""
        made = verified.made
        num_accepted = TokenSequence(made.draft).num_common(0, said)
        if len(said) != num_accepted + 1 or num_accepted >= len(made.candidates):
            return
        ranked = made.candidates[num_accepted]
        rank = ranked.index(said[-1]) if said[-1] in ranked else None
        self._outcomes.learn(made.margins, num_accepted, rank, is_greedy=verified.is_greedy)

    def _add_others(
        self,
        verified: _Verified,
        source: Session,
        num_accepted: int,
        ranked: Sequence[int],
        odds: float,
    ) -> None:
        """Add branches for the candidates behind the first, which all have `odds` together."""
        for rank in range(1, MAX_RANKS):
            its_odds = odds * self._outcomes.ranks[rank]
            # Fewer tokens may be sampled than there are ranks.
            if its_odds < _LEAST_ODDS or ranked[rank] in ranked[:rank]:
                continue
            text = source.tokens.followed_by(())
            text.truncate(verified.committed_len + num_accepted)
            text.extend(ranked[rank : rank + 1])
            self._add(verified, source, text, len(text), its_odds)

    def _add(
        self, verified: _Verified, source: Session, text: TokenSequence, first: int, odds: float
    ) -> None:
        session = verified.session
        job = Job(session.seq, verified.made.ready_s, 1, 0, num_ranks=MAX_RANKS)
        branch = _Branch(text, first, source, odds, job)
        branch.is_done = text.ids[-1] in session.opened.eos_ids
        verified.branches.append(branch)

    def _fork(self, verified: _Verified, branch: _Branch) -> Session:
        """Return the branch's fork, made when it is first needed."""
        if branch.fork is not None:
            return branch.fork
        session = verified.session
        verified.num_forked += 1
        name = f"{session.session_id}{_FORK_MARK}{verified.num_forked}"
        fork = branch.fork = Session(
            opened=msgspec.structs.replace(session.opened, session_id=name),
            order=_YOUNGEST,
            table=self._pool.new_table(),
            last_active_s=session.last_active_s,
            tokens=branch.text,
            job=branch.job,
            adapter=session.adapter,
        )
        num_rows = len(branch.text) - 1
        num_whole = num_rows // self._pool.block_size
        held = branch.source.table.block_ids
        fork.adopt_blocks(0, held[:num_whole])
        fork.num_computed_tokens = num_rows
        fork.copied_block = held[num_whole] if num_rows % self._pool.block_size else None
        self._forks[fork] = verified, branch
        return fork

    def _drop(self, verified: _Verified, branch: _Branch) -> None:
        verified.branches.remove(branch)
        if branch.fork is not None:
            del self._forks[branch.fork]
            branch.fork.job = None
            branch.fork.release_blocks()


def _longest(branches: Sequence[_Branch], start: int, text: Sequence[int]) -> _Branch | None:
    """Return the branch that has drafted most behind `text`, which begins at `start`."""
    length = start + len(text)
    found = [
        branch
        for branch in branches
        if branch.first <= length < len(branch.text)
        and branch.text.ids[start:length] == text
        and not branch.has_lost_rows
    ]
    return max(found, key=lambda branch: len(branch.text), default=None)
