"""KV blocks found again by the tokens they were computed from.

KV depends on token ids and the adapter alone. So a session may read the blocks of another whose
text begins alike, with the same adapter and salt. `published_blocks` maps chains of whole blocks of
ids to block ids. This module decides which blocks of which sessions get in, and which sessions may
have them.

- Only committed tokens get in (`Session.committed_len`). These are tokens that the sender named as
  its text. Tokens that the engine's own verdict settled are committed too, unless the session is
  tentative. Drafted tokens never get in. Neither does KV that is not finite.
- Live sessions publish too, a prompt while it is still being prefilled. Two sessions that
  computed the same block keep one of the two. A published block is never written.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from models.kv.block_pool import BlockPool
from models.protocol.token_sequence import TokenSequence
from models.scheduler.published_blocks import Key, PublishedBlocks
from models.scheduler.sessions import PlannedRows, Session


class PrefixCache:
    """Publishes blocks that sessions have computed, and gives them to others.

    Args:
        pool: where the blocks are; what it kept for a cache that is gone is let go.
        are_finite: whether all KV in these blocks is finite numbers.
        is_enabled: False: nothing is ever published or found.
        worth_waiting_rows: a prompt waits for a pass that computes so many of its rows for
            another session; fewer are not worth the time of a pass.

    Raises:
        ValueError: the pool keeps blocks for another cache that is still there.
    """

    def __init__(
        self,
        pool: BlockPool,
        are_finite: Callable[[list[int]], bool],
        *,
        is_enabled: bool = True,
        worth_waiting_rows: int = 128,
    ) -> None:
        self._pool = pool
        self._are_finite = are_finite
        self._is_enabled = is_enabled
        self._awaited_rows = max(worth_waiting_rows, pool.block_size)
        self.published = PublishedBlocks(pool)  # to look at, not to change
        self.num_queries = 0  # tokens looked for
        self.num_hits = 0  # tokens found
        if is_enabled:
            pool.start_keeping(self.published)

    @classmethod
    def disabled(cls, pool: BlockPool) -> PrefixCache:
        """Return a cache that finds nothing."""
        return cls(pool, lambda block_ids: False, is_enabled=False)

    def reach(self, session: Session) -> int:
        """Return how many rows of a session with a job would be computed after `adopt`.

        It needs hashes alone and a few look-ups, because no block is here without its predecessor.
        """
        wanted = self._wanted(session)
        if not wanted:  # as with every plain step: one row more
            return session.num_computed_tokens
        num_found = bisect_left(
            wanted, True, key=lambda index: self._key(session, index) not in self.published.by_key
        )
        if num_found == 0:
            return session.num_computed_tokens
        return (wanted.start + num_found) * self._pool.block_size

    def num_lacking(self, session: Session) -> int:
        """Blocks that a session without any needs beside those that others hold; as `reach`."""

        def is_unheld(index: int) -> bool:
            block = self.published.by_key.get(self._key(session, index))
            return block is None or self._pool.num_refs(block.block_id) == 0

        num_held = bisect_left(self._wanted(session), True, key=is_unheld)
        return self._pool.blocks_for(len(session.tokens)) - num_held

    def adopt(self, session: Session) -> None:
        """Give a session with a job the blocks that others have computed for it by now.

        Rows whose logits its job needs are left to compute.
        """
        if not self._is_enabled or session.job is None or not session.may_use_cached_prefix:
            return
        if session.asked_len == 0:
            session.asked_len = len(session.tokens)
            self.num_queries += session.asked_len
        wanted = self._wanted(session)
        found = self._find(session, wanted)
        if not found:
            return
        size = self._pool.block_size
        num_asked = session.asked_len - session.num_computed_tokens
        num_gained = len(found) * size - session.num_computed_tokens % size
        session.adopt_blocks(wanted.start, found)
        num_hits = max(0, min(num_asked, num_gained))
        self.num_hits += num_hits
        session.num_cached_tokens += num_hits

    def unask(self, session: Session) -> None:
        """Count nothing of what `adopt` did for a session that had no blocks: it gives all back."""
        self.num_queries -= session.asked_len
        self.num_hits -= session.num_cached_tokens

    def awaits(self, need: PlannedRows, planned: Iterable[PlannedRows]) -> bool:
        """Return whether one of the `planned` computes the first rows of `need` in the coming pass.

        They are found here after that pass. Hashes may collide, at the cost of that one pass.
        """
        session, start = need.session, need.start
        if not self._is_enabled or not session.may_use_cached_prefix:
            return False
        tokens, salt = session.tokens, session.opened.salt
        stop = start + self._awaited_rows
        if stop > start + need.num_rows - need.num_logits:
            return False
        for rows in planned:
            other = rows.session
            if (
                other.opened.salt == salt
                and rows.start < start + self._pool.block_size
                and stop <= min(rows.start + rows.num_rows, other.committed_len)
                and other.tokens.hash_at(stop) == tokens.hash_at(stop)
            ):
                return True
        return False

    def publish(self, sessions: Sequence[Session]) -> None:
        """Add the whole blocks of computed and committed tokens of these sessions."""
        if not self._is_enabled:
            return
        fresh: list[tuple[Session, int, int]] = []
        for session in sessions:
            last = min(session.committed_len, session.num_computed_tokens) // self._pool.block_size
            first = self.published.num_first(session.table.block_ids, last)
            if first < last:
                fresh.append((session, first, last))
        if fresh and not self._are_sound(fresh):
            fresh = [part for part in fresh if self._are_sound([part])]
        for session, first, last in fresh:
            self._publish(session, first, last)

    def _wanted(self, session: Session) -> range:
        """Return the session's blocks to look for, after those that it has computed.

        Its job needs the logits of no row in them.
        """
        job = session.job
        if not self._is_enabled or job is None or not session.may_use_cached_prefix:
            return range(0)
        size = self._pool.block_size
        first, last = (
            session.num_computed_tokens // size,
            (len(session.tokens) - job.num_logits) // size,
        )
        if 0 < first < last and session.table.block_ids[first - 1] not in self.published.by_block:
            return range(0)  # the one before is computed, but not committed yet
        return range(first, last)

    def _find(self, session: Session, wanted: range) -> list[int]:
        """Published blocks in place of those `wanted`, as far as there are any."""
        parent = None
        if wanted and wanted.start > 0:
            parent = self.published.by_block[session.table.block_ids[wanted.start - 1]]
        found: list[int] = []
        for index in wanted:
            block = self.published.by_key.get(self._key(session, index))
            if block is None or not block.holds(self._ids(session.tokens, index), parent):
                break
            found.append(block.block_id)
            parent = block
        return found

    def _publish(self, session: Session, first: int, last: int) -> None:
        """Add the session's blocks [first, last), or take those in their place that are there."""
        table = session.table
        parent = self.published.by_block[table.block_ids[first - 1]] if first > 0 else None
        for index in range(first, last):
            key = self._key(session, index)
            ids = self._ids(session.tokens, index)
            there = self.published.by_key.get(key)
            if there is None:
                parent = self.published.add(table.block_ids[index], key, ids, parent)
            elif there.holds(ids, parent):
                table.exchange(index, there.block_id)
                parent = there
            else:  # another text has this hash: nothing can be added after it
                return

    def _are_sound(self, fresh: list[tuple[Session, int, int]]) -> bool:
        return self._are_finite(
            [block for session, *where in fresh for block in session.table.block_ids[slice(*where)]]
        )

    def _key(self, session: Session, index: int) -> Key:
        stop = (index + 1) * self._pool.block_size
        return session.opened.salt, session.tokens.hash_at(stop)

    def _ids(self, tokens: TokenSequence, index: int) -> list[int]:
        size = self._pool.block_size
        return tokens.ids[index * size : (index + 1) * size]
