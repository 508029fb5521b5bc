"""Which KV block belongs to which sessions. Plain ints; knows nothing of tensors or models.

A block is `block_size` consecutive token slots: block b holds slots
[b * block_size, (b + 1) * block_size). A block table lists a session's blocks in order, so the
KV of its position i is in slot `block_ids[i // block_size] * block_size + i % block_size`.
Extending and rolling back are both `BlockTable.resize`, to a number of tokens.

Tables may share blocks that are full and that nobody writes any more (`BlockTable.fork`). A table
that has to write into a shared block gives it up and takes one of its own (`BlockTable.reserve`);
the rows it held are computed again from the block's start. They are fewer than `block_size` and
mostly go along in a pass that runs anyway, so no block is ever copied and all of this stays
bookkeeping of ints.

Invariant: a block is free exactly when no table lists it, and its reference count is the number
of tables that do; `BlockPool.check` proves it. Vocabulary and idea: vLLM, arXiv 2309.06180.
"""

from __future__ import annotations

from collections.abc import Iterable


class OutOfBlocks(Exception):
    """The pool has fewer free blocks than were asked for. Nothing was changed.

    Args:
        message: how many were asked for and how many there are.
        num_missing: by how many they are too few.
    """

    def __init__(self, message: str, num_missing: int) -> None:
        super().__init__(message)
        self.num_missing = num_missing


class BlockPool:
    """All KV blocks of one model on one device.

    Args:
        num_blocks: blocks in the pool.
        block_size: tokens per block.
    """

    __slots__ = ("_free", "_num_refs", "block_size", "num_blocks")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing")
        self.num_blocks = num_blocks
        self.block_size = block_size
        # A stack: the block freed last is handed out first, while it may still be in a cache.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._num_refs = [0] * num_blocks

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can still hand out."""
        return len(self._free)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens occupy."""
        return -(-num_tokens // self.block_size)

    def new_table(self) -> BlockTable:
        """An empty table that takes its blocks from this pool."""
        return BlockTable(self)

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` blocks, each with one reference.

        Raises:
            OutOfBlocks: fewer than `count` are free; the pool is unchanged.
        """
        if count > len(self._free):
            raise OutOfBlocks(
                f"{count} KV blocks wanted, {len(self._free)} of {self.num_blocks} are free",
                count - len(self._free),
            )
        first = len(self._free) - count
        blocks = self._free[first:][::-1]
        del self._free[first:]
        for block in blocks:
            self._num_refs[block] = 1
        return blocks

    def share(self, block_ids: Iterable[int]) -> None:
        """Add a reference to each of these blocks, which are in use."""
        for block in block_ids:
            self._num_refs[block] += 1

    def free(self, block_ids: Iterable[int]) -> None:
        """Drop one reference to each of these blocks; those without any can be handed out."""
        for block in reversed(list(block_ids)):
            self._num_refs[block] -= 1
            if self._num_refs[block] == 0:
                self._free.append(block)

    def num_refs(self, block_id: int) -> int:
        """How many tables list the block."""
        return self._num_refs[block_id]

    def is_shared(self, block_id: int) -> bool:
        """Whether more than one table lists the block: then nobody may write it."""
        return self._num_refs[block_id] > 1

    def writes_shared(self, block_ids: list[int], start: int, stop: int) -> bool:
        """Whether a row of [start, stop) of a table with these blocks is in a shared one."""
        written = block_ids[start // self.block_size : self.blocks_for(stop)]
        return any(self.is_shared(block) for block in written)

    def check(self, tables: Iterable[BlockTable]) -> None:
        """Prove that `tables` (all that exist) and the free blocks make up the pool exactly.

        Raises:
            AssertionError: a block is lost, is free and in use, or is in more or fewer tables
                than it has references, or a table has the wrong length.
        """
        listed = [0] * self.num_blocks
        for table in tables:
            wanted = self.blocks_for(table.num_tokens)
            if len(table.block_ids) != wanted:
                raise AssertionError(
                    f"a table of {table.num_tokens} tokens has {len(table.block_ids)} blocks, "
                    f"not {wanted}"
                )
            if len(set(table.block_ids)) != wanted:
                raise AssertionError(f"a table lists a block twice: {table.block_ids}")
            for block in table.block_ids:
                listed[block] += 1
        used = [block for block, count in enumerate(listed) if count]
        if sorted(self._free + used) != list(range(self.num_blocks)):
            raise AssertionError(
                f"{len(self._free)} free + {len(used)} used blocks "
                f"({len({*self._free, *used})} different ones) do not make up {self.num_blocks}"
            )
        if listed != self._num_refs:
            block = next(b for b in range(self.num_blocks) if listed[b] != self._num_refs[b])
            raise AssertionError(
                f"block {block} has {self._num_refs[block]} references "
                f"but is in {listed[block]} tables"
            )


class BlockTable:
    """One session's blocks, in order of position. Made by `BlockPool.new_table` and `fork`."""

    __slots__ = ("_pool", "block_ids", "num_tokens")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.block_ids: list[int] = []
        self.num_tokens = 0  # positions the table has room reserved for

    def fork(self, num_tokens: int) -> BlockTable:
        """A new table that shares the whole blocks within the first `num_tokens` tokens.

        Their KV must have been computed. The new table's `num_tokens` says how many tokens that
        is: `num_tokens` less what lies behind the last whole block.
        """
        if not 0 <= num_tokens <= self.num_tokens:
            raise ValueError(f"num_tokens must be within 0..{self.num_tokens}, got {num_tokens}")
        forked = BlockTable(self._pool)
        num_blocks = num_tokens // self._pool.block_size
        forked.block_ids = self.block_ids[:num_blocks]
        forked.num_tokens = num_blocks * self._pool.block_size
        self._pool.share(forked.block_ids)
        return forked

    def first_row(self, start: int) -> int:
        """The row to compute from so that row `start` can be written: at most `start`.

        Within a shared block it is the block's start, because the block must be given up.
        """
        index = start // self._pool.block_size
        if index < len(self.block_ids) and self._pool.is_shared(self.block_ids[index]):
            return index * self._pool.block_size
        return start

    def resize(self, num_tokens: int) -> None:
        """Reserve room for exactly `num_tokens` tokens; what is behind them is given back.

        Raises:
            OutOfBlocks: the pool has too few free blocks; the table is unchanged.
        """
        self.reserve(num_tokens, num_tokens)

    def reserve(self, num_tokens: int, start: int) -> None:
        """Reserve room for exactly `num_tokens` tokens, where rows from `start` on are written.

        Shared blocks from `start` on are replaced by blocks of the table's own. Rows before
        `start` keep their KV; those from `start` on are lost where their block was shared.

        Raises:
            OutOfBlocks: the pool has too few free blocks; the table is unchanged.
            ValueError: a size is out of range, or `start` is within a shared block, so that rows
                before it would be lost: `first_row` says where to start instead.
        """
        if num_tokens < 0:
            raise ValueError(f"num_tokens must not be negative, got {num_tokens}")
        if not 0 <= start <= num_tokens:
            raise ValueError(f"start must be within 0..{num_tokens}, got {start}")
        pool = self._pool
        wanted = pool.blocks_for(num_tokens)
        first = start // pool.block_size if start < num_tokens else wanted
        if first < wanted and self.first_row(start) != start:
            raise ValueError(f"row {start} is within a shared block")
        entered = self.block_ids[first:wanted]
        given_up = [block for block in entered if pool.is_shared(block)]
        dropped = self.block_ids[wanted:]
        num_new = len(given_up) + max(wanted - len(self.block_ids), 0)
        num_free = pool.num_free + sum(not pool.is_shared(block) for block in dropped)
        if num_new > num_free:
            raise OutOfBlocks(
                f"{num_new} KV blocks wanted, {num_free} of {pool.num_blocks} are free",
                num_new - num_free,
            )
        pool.free(dropped)
        new = iter(pool.allocate(num_new))
        entered = [next(new) if pool.is_shared(block) else block for block in entered]
        self.block_ids[first:] = [*entered, *new]
        pool.free(given_up)
        self.num_tokens = num_tokens

    def free(self) -> None:
        """Give all blocks back. Idempotent; the table can be used again."""
        self.resize(0)
