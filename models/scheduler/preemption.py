"""Allocates KV blocks in one pass and preempts sessions for them: the older session goes first.

A session claims blocks for all its tokens at once or waits. Partly filled waiting sessions would
only take blocks from each other. When too few are free, the youngest sessions younger than the
claimant are preempted. Their blocks are freed, their tokens stay, and their rows are computed again
later. That happens only if it is enough for the claim. So the oldest session always gets on.

For example, a pool has 10 blocks, none of them free. Session 1 (the oldest) holds 4 blocks and
claims 3 more, session 2 holds 4, session 3 holds 2:

    session 3 is looked at first    its 2 blocks are too few
    then session 2                  6 are enough: both are preempted, 3 blocks stay free

Had session 3 claimed 5, nobody would be younger, and it would wait. Any later claim of a younger
session for as many blocks fails without a look. The blocks that are free or held by younger
sessions can only become fewer while a pass is planned. While blocks are free a claim looks at
nobody.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

from models.kv.block_pool import BlockPool, OutOfBlocks
from models.scheduler.sessions import Session

_Holder = tuple[float, str, Session]  # forks that draft ahead are all of one order


def _holder(session: Session) -> _Holder:
    return -session.order, session.session_id, session


class _Refusal(NamedTuple):
    """The blocks that a failed claim could have had."""

    order: float  # the session's
    num_blocks: int  # free, or held by younger sessions alone
    num_own: int  # more of them, were it not for the session itself


class Preemption:
    """The claims of one pass.

    Args:
        pool: where the blocks come from.
        sessions: all that may lose blocks.
    """

    def __init__(self, pool: BlockPool, sessions: Iterable[Session]) -> None:
        self._pool = pool
        self._sessions = sessions
        self._holders: list[_Holder] | None = None  # a heap, the youngest on top
        self._listed: set[float] = set()  # the orders of those in the heap
        self._refused: _Refusal | None = None  # that of the oldest session

    def claim(self, session: Session, start: int) -> list[Session] | None:
        """Reserves blocks for all tokens of `session`, whose rows from `start` on will be written.

        Returns:
            The sessions that were preempted for it; None: it must wait, and none was.
        """
        victims: list[Session] = []
        try:
            session.reserve_rows(start)
        except OutOfBlocks as error:
            victims = self._victims(session, start, error.num_missing)
            if not victims:
                return None
            for victim in victims:
                victim.release_blocks()
            session.reserve_rows(start)
        if self._holders is not None and session.order not in self._listed:
            self._listed.add(session.order)
            heapq.heappush(self._holders, _holder(session))
        return victims

    def has_refused(self, session: Session, num_wanted: int) -> bool:
        """Return whether a claim of `num_wanted` blocks must fail, because an older one did."""
        refused = self._refused
        if refused is None or session.order < refused.order:
            return False
        return num_wanted > refused.num_blocks

    def withdraw(self, session: Session) -> None:
        """Takes back the cached blocks that a session took over for a claim that has failed."""
        session.release_blocks()
        refused = self._refused
        if refused is not None and refused.order == session.order:
            self._refused = _Refusal(session.order, refused.num_blocks + refused.num_own, 0)

    def _victims(self, session: Session, start: int, num_missing: int) -> list[Session]:
        """Return the sessions whose blocks replace the missing ones; [] if there are too few."""
        pool = self._pool
        # Blocks that the session writes and shares must be replaced by copies of its own, unless
        # the sharers are preempted: `freed` counts such a block as gained, like a free one.
        first, stop = start // pool.block_size, pool.blocks_for(len(session.tokens))
        freed = _FreedBlocks(pool, session.table.block_ids[first:stop])
        num_wanted = pool.num_free + num_missing - freed.num_shared
        if self.has_refused(session, num_wanted):
            return []
        # Take sessions from the youngest on until their blocks are enough, or the next is older.
        looked_at: list[Session] = []
        holders = self._heap()
        while freed.count < num_missing and holders and -holders[0][0] > session.order:
            looked_at.append(heapq.heappop(holders)[2])
            freed.add(looked_at[-1])
        victims: list[Session] = []
        if freed.count >= num_missing:
            # One that holds only blocks that others go on using would lose its rows for nothing.
            victims = [other for other in looked_at if freed.has_of(other)]
        elif self._refused is None or session.order < self._refused.order:
            # Remember what could not be enough: younger sessions need not look again. Blocks of the
            # session alone count only for others, once it has given them back (`withdraw`).
            num_blocks = pool.num_free + freed.count
            self._refused = _Refusal(session.order, num_blocks, freed.num_alone_in(session))
        # Sessions that were looked at and keep their blocks may still lose them in this pass.
        preempted = set(map(id, victims))
        for other in looked_at:
            if id(other) not in preempted:
                heapq.heappush(holders, _holder(other))
        return victims

    def _heap(self) -> list[_Holder]:
        if self._holders is None:
            self._holders = [_holder(s) for s in self._sessions if s.table.block_ids]
            self._listed = {session.order for _, _, session in self._holders}
            heapq.heapify(self._holders)
        return self._holders


class _FreedBlocks:
    """Blocks a claimant would gain if some sessions gave up theirs.

    A block that only they hold becomes free. One that the claimant, which is going to write it,
    shares with no other session need not be replaced.

    Args:
        pool: of the blocks.
        written: the claimant's own blocks that it is going to write.
    """

    def __init__(self, pool: BlockPool, written: list[int]) -> None:
        self._pool = pool
        self._kept = {block: 1 for block in written if pool.is_shared(block)}
        self._num_dropped: Counter[int] = Counter()
        self.num_shared = len(self._kept)
        self.count = 0

    def add(self, session: Session) -> None:
        """Note that a session gives up its blocks."""
        for block in session.table.block_ids:
            self._num_dropped[block] += 1
            self.count += self._is_gained(block)

    def has_of(self, session: Session) -> bool:
        """Return whether a block of this session, which was added, is gained."""
        return any(self._is_gained(block) for block in session.table.block_ids)

    def num_alone_in(self, session: Session) -> int:
        """Blocks of a session that was not added, and of nobody beside it and those added."""
        blocks = session.table.block_ids
        return sum(self._pool.num_refs(b) - self._num_dropped[b] == 1 for b in blocks)

    def _is_gained(self, block: int) -> bool:
        left = self._pool.num_refs(block) - self._num_dropped[block]
        return left == self._kept.get(block, 0)
