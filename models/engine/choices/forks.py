"""Forks sessions to weigh their choices: one fork of the session for each branch.

When the session's own last row is computed, its branches become forks. These are sessions of the
engine's own that hold the same whole KV blocks by reference. They begin with a copy of its last
block, which is not full. They compute the rows of their own tokens. They wait for rows and blocks
like all sessions. They are all in one pass if it has room and the streams beside it can bear it.
Otherwise they are in several. As many exist at a time as one pass has rows for. Forks compute rows
of the prefix again if the session has lost its blocks, or they lack the last one.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import msgspec
from torch import Tensor

from models.engine.choices.scoring import Line, StepScores
from models.engine.choices.tree import Branch, ChoiceTree
from models.engine.jobs import Jobs
from models.kv.block_pool import BlockPool
from models.scheduler.sessions import Job, PlannedRows, Session

_MAX_COPIED_IDS = 1 << 22  # ids of the prefix in all forks of a session; 32 bytes each
_FORK_MARK = "\0"  # in a fork's id, between that of its session and a number
_ORDER_STEP = 2.0**-20  # forks are younger than their session and older than the next


@dataclass(slots=True, eq=False)
class _ForkRows:
    """Implements `LogitsTaker`: rows of a branch go to its session's scores."""

    branch: Branch
    scores: StepScores
    first_own_row: int  # that of the branch's first token
    num_done: int = 0

    @property
    def next_row(self) -> int:
        """See `LogitsTaker`."""
        branch = self.branch
        return self.first_own_row + len(branch.tokens) - len(branch.nodes) + self.num_done

    def take(self, first_row: int, logits: Tensor) -> None:
        """See `LogitsTaker`."""
        assert first_row == self.next_row, f"rows from {first_row}, not {self.next_row}"
        stop = self.num_done + len(logits)
        num_tokens = first_row - self.first_own_row + len(logits)
        nodes, tokens = self.branch.nodes[self.num_done : stop], self.branch.tokens[:num_tokens]
        self.scores.add(Line(nodes, tokens, logits))
        self.num_done = stop


@dataclass(slots=True, eq=False)
class Weighing:
    """The choices of one session's message."""

    session: Session
    tree: ChoiceTree
    scores: StepScores
    waiting: deque[Branch]
    forks: dict[str, Session] = field(default_factory=dict)
    num_forked: int = 0

    @property
    def is_done(self) -> bool:
        """True if all rows have been taken."""
        return not self.waiting and not self.forks

    @property
    def logprobs(self) -> list[float]:
        """Log-probabilities of all choices, once it is done."""
        return [self.tree.logprob(choice) for choice in range(len(self.tree))]


class Forks:
    """All weighings of one engine.

    Args:
        pool: of the KV blocks.
        jobs: where forks wait for their rows.
        max_rows: of one pass.
        vocab_size: ids that may be sampled.
    """

    def __init__(self, pool: BlockPool, jobs: Jobs, max_rows: int, vocab_size: int) -> None:
        self._pool = pool
        self._jobs = jobs
        self._max_rows = max_rows
        self._vocab_size = vocab_size
        self._weighings: dict[str, Weighing] = {}  # by session

    @property
    def sessions(self) -> Iterable[Session]:
        """All forks."""
        return [fork for weighing in self._weighings.values() for fork in weighing.forks.values()]

    def owner(self, session: Session) -> Session:
        """Return the session that a fork belongs to; any other session itself."""
        weighing = self._weighing_of(session)
        return session if weighing is None else weighing.session

    def begin(self, session: Session, choices: Sequence[Sequence[int]]) -> None:
        """Weigh these choices as soon as the session's own last row is there."""
        tree = ChoiceTree(choices)
        self._weighings[session.session_id] = Weighing(
            session, tree, StepScores(tree, session, self._vocab_size), deque(tree.branches)
        )

    def end(self, session: Session) -> None:
        """Forget what a session was weighing, and free its forks. Idempotent."""
        weighing = self._weighings.pop(session.session_id, None)
        if weighing is not None:
            for fork in list(weighing.forks.values()):
                self._drop(weighing, fork)

    def share_blocks(self) -> None:
        """Let forks that have not begun hold what their session does; called before a pass."""
        for weighing in self._weighings.values():
            for fork in weighing.forks.values():
                self._share(weighing.session, fork)

    def _share(self, session: Session, fork: Session) -> None:
        num_prefix, size = len(session.tokens), self._pool.block_size
        num_whole = num_prefix // size
        held = session.table.block_ids
        if len(fork.table.block_ids) > num_whole:  # it has begun
            return
        if not fork.table.block_ids and held:
            fork.adopt_blocks(0, held[:num_whole])
        fork.num_computed_tokens = len(fork.table.block_ids) * size
        fork.copied_block = None
        if len(held) > num_whole:
            fork.copied_block = held[num_whole]
            fork.num_computed_tokens = num_prefix

    def give_up_last_block(self, fork: Session) -> bool:
        """Free the last block of a fork's session, for the fork's own; whether there was one."""
        session = self.owner(fork)
        num_whole = len(session.tokens) // self._pool.block_size
        if session is fork or len(session.table.block_ids) <= num_whole:
            return False
        session.table.resize(num_whole * self._pool.block_size)
        session.num_computed_tokens = min(
            session.num_computed_tokens, num_whole * self._pool.block_size
        )
        return True

    def take(self, rows: Sequence[PlannedRows], now: float) -> list[Weighing]:
        """Take the last rows of a pass's forks and of sessions that begin to weigh.

        Returns:
            What is weighed now, as far as the pass had a part in it. Further forks begin.
        """
        touched: dict[str, Weighing] = {}
        for planned in rows:
            session, job = planned.session, planned.job
            weighing = self._weighing_of(session)
            if weighing is None:
                continue
            touched[weighing.session.session_id] = weighing
            logits, job.logits = job.logits, None
            if logits is None:
                continue
            if session.taker is not None:
                session.taker.take(len(session.tokens) - 1, logits)
                self._drop(weighing, session)
            else:
                weighing.scores.add(Line([0], [], logits))
                job.is_forked = True
        for weighing in touched.values():
            weighing.scores.flush()  # the next pass may overwrite the logits
            job_of = weighing.session.job
            if job_of is not None and job_of.is_forked:
                self._fill(weighing, now)
        return list(touched.values())

    def _weighing_of(self, session: Session) -> Weighing | None:
        """Return the weighing of a session, or of the session that a fork belongs to."""
        name = session.session_id
        is_fork = session.taker is not None
        return self._weighings.get(name.rpartition(_FORK_MARK)[0] if is_fork else name)

    def _fill(self, weighing: Weighing, now: float) -> None:
        """Begin as many further forks as one pass has rows for."""
        num_prefix = len(weighing.session.tokens)
        num_rows = sum(len(fork.tokens) - num_prefix for fork in weighing.forks.values())
        most = max(1, _MAX_COPIED_IDS // num_prefix)
        while weighing.waiting and len(weighing.forks) < most:
            num_rows += len(weighing.waiting[0].tokens)
            if weighing.forks and num_rows > self._max_rows:
                return
            self._fork(weighing, weighing.waiting.popleft(), now)

    def _fork(self, weighing: Weighing, branch: Branch, now: float) -> None:
        session = weighing.session
        weighing.num_forked += 1
        fork_id = f"{session.session_id}{_FORK_MARK}{weighing.num_forked}"
        fork = Session(
            opened=msgspec.structs.replace(session.opened, session_id=fork_id),
            order=session.order + weighing.num_forked * _ORDER_STEP,
            table=self._pool.new_table(),
            last_active_s=now,
            tokens=session.tokens.followed_by(branch.tokens),
            committed_len=session.committed_len,
            taker=_ForkRows(branch, weighing.scores, len(session.tokens)),
            adapter=session.adapter,
        )
        weighing.forks[fork_id] = fork
        self._jobs.start(
            fork, Job(seq=session.seq, ready_s=now, num_logits=1, steps_left=0, is_prompt=True)
        )

    def _drop(self, weighing: Weighing, fork: Session) -> None:
        self._jobs.end(fork)
        fork.release_blocks()
        del weighing.forks[fork.session_id]
