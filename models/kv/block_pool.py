"""Assigns KV blocks to sessions. Plain ints; knows nothing of tensors or models.

A block is `block_size` consecutive token slots: block b holds slots [b * block_size, (b + 1) *
block_size). A block table lists a session's blocks in order. So the KV of its position i is in slot
`block_ids[i // block_size] * block_size + i % block_size`. Extending and rolling back are both
`BlockTable.resize`, to a number of tokens.

Tables may share blocks that are full and that nobody writes any more (`BlockTable.adopt`). A table
that has to write into a shared block gives it up and takes one of its own (`BlockTable.reserve`).
The rows it held are computed again from the block's start. They are fewer than `block_size` and
mostly go along in a pass that runs anyway. So no block is ever copied, and all of this stays
bookkeeping of ints.

A block may be kept (`BlockPool.keep`). Then no table may write it, and it is idle when no table
lists it any more. Its KV stays until the pool needs the room. The block that became idle first goes
first. A table lets go of its last blocks first. Suppose that every table lists two blocks together,
in this order. The second is then never idle for a shorter time than the first.

Invariant: a block is free or idle exactly when no table lists it, idle if it is kept. Its reference
count is the number of tables that list it. `BlockPool.check` proves it. Vocabulary and idea: vLLM,
arXiv 2309.06180.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Protocol


class OutOfBlocks(Exception):
    """The pool has fewer free blocks than were asked for: by `num_missing`. Nothing was changed."""

    def __init__(self, num_wanted: int, num_free: int, num_blocks: int) -> None:
        super().__init__(f"{num_wanted} KV blocks wanted, {num_free} of {num_blocks} are free")
        self.num_missing = num_wanted - num_free


class BlockKeeper(Protocol):
    """Something that holds references to cached blocks and can drop them."""

    def forget(self, block_id: int) -> None:
        """Forget a block, because the pool takes it back."""
        ...


class BlockPool:
    """All KV blocks of one model on one device.

    Args:
        num_blocks: blocks in the pool.
        block_size: tokens per block.
    """

    __slots__ = ("_free", "_idle", "_keeper", "_kept", "_num_refs", "block_size", "num_blocks")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing")
        self.num_blocks = num_blocks
        self.block_size = block_size
        # A stack: the block freed last is handed out first, while it may still be in a cache.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._idle: dict[int, None] = {}  # in the order in which they became idle
        self._kept: set[int] = set()
        self._num_refs = [0] * num_blocks
        self._keeper: weakref.ref[BlockKeeper] | None = None

    @property
    def num_free(self) -> int:
        """Blocks that `allocate` can still hand out, idle ones included."""
        return len(self._free) + len(self._idle)

    def blocks_for(self, num_tokens: int) -> int:
        """Blocks that `num_tokens` tokens occupy."""
        return -(-num_tokens // self.block_size)

    def new_table(self) -> BlockTable:
        """Return an empty table that takes its blocks from this pool."""
        return BlockTable(self)

    def allocate(self, count: int) -> list[int]:
        """Hand out `count` blocks, each with one reference; idle ones only where no other is left.

        Raises:
            OutOfBlocks: fewer than `count` are free; the pool is unchanged.
        """
        if count > self.num_free:
            raise OutOfBlocks(count, self.num_free, self.num_blocks)
        while len(self._free) < count:
            self._evict(next(iter(self._idle)))
        first = len(self._free) - count
        blocks = self._free[first:][::-1]
        del self._free[first:]
        for block in blocks:
            self._num_refs[block] = 1
        return blocks

    def share(self, block_ids: Iterable[int]) -> None:
        """Add a reference to each of these blocks, which are in use or idle."""
        for block in block_ids:
            self._idle.pop(block, None)
            self._num_refs[block] += 1

    def free(self, block_ids: Iterable[int]) -> None:
        """Drop one reference to each of these blocks; those without any can be handed out."""
        for block in reversed(list(block_ids)):
            self._num_refs[block] -= 1
            if self._num_refs[block] == 0:
                if block in self._kept:
                    self._idle[block] = None
                else:
                    self._free.append(block)

    def keep(self, block_id: int) -> None:
        """Hold on to what is in a block of some table until the pool needs the room."""
        self._kept.add(block_id)

    def is_kept(self, block_id: int) -> bool:
        """Return whether the block is kept."""
        return block_id in self._kept

    def start_keeping(self, keeper: BlockKeeper) -> None:
        """Tell `keeper` from now on which kept block is handed out, as long as it exists.

        Blocks kept for an earlier keeper are released.

        Raises:
            ValueError: that other one still exists: it would go on to hand out its blocks.
        """
        if self._keeper is not None and self._keeper() is not None:
            raise ValueError(
                "the KV blocks of this runner are kept for the prefix cache of another engine, "
                "which is still there: let go of it first, or set enable_prefix_caching to False"
            )
        for block in list(self._idle):
            self._evict(block)
        self._kept.clear()
        self._keeper = weakref.ref(keeper)

    def num_refs(self, block_id: int) -> int:
        """Return how many tables list the block."""
        return self._num_refs[block_id]

    def is_shared(self, block_id: int) -> bool:
        """Return whether the block is read-only: it is kept, or more than one table lists it."""
        return self._num_refs[block_id] > 1 or block_id in self._kept

    def becomes_free(self, block_id: int) -> bool:
        """Return whether the block can be handed out when one table that lists it gives it back."""
        return self._num_refs[block_id] == 1

    def writes_shared(self, block_ids: list[int], start: int, stop: int) -> bool:
        """Return whether a row of [start, stop) of a table with these blocks is in a shared one."""
        written = block_ids[start // self.block_size : self.blocks_for(stop)]
        return any(self.is_shared(block) for block in written)

    def check(self, tables: Iterable[BlockTable]) -> None:
        """Prove that `tables` (all that exist), idle and free blocks make up the pool exactly.

        Raises:
            AssertionError: a block is lost, is free and in use, idle and not kept, or is in more
                or fewer tables than it has references, or a table has the wrong length.
        """
        listed = [0] * self.num_blocks
        for table in tables:
            for block in table.checked_blocks():
                listed[block] += 1
        used = [block for block, count in enumerate(listed) if count]
        unused = [*self._free, *self._idle]
        if sorted(unused + used) != list(range(self.num_blocks)):
            raise AssertionError(
                f"{len(self._free)} free + {len(self._idle)} idle + {len(used)} used blocks "
                f"({len({*unused, *used})} different ones) do not make up {self.num_blocks}"
            )
        if listed != self._num_refs:
            block = next(b for b in range(self.num_blocks) if listed[b] != self._num_refs[b])
            raise AssertionError(
                f"block {block} has {self._num_refs[block]} references "
                f"but is in {listed[block]} tables"
            )
        if self._kept != self._idle.keys() | (self._kept & set(used)):
            raise AssertionError(f"kept {self._kept}, idle {list(self._idle)}, used {used}")

    def _evict(self, block_id: int) -> None:
        """Turn an idle block into a free one."""
        del self._idle[block_id]
        self._kept.discard(block_id)
        self._free.append(block_id)
        keeper = None if self._keeper is None else self._keeper()
        if keeper is not None:
            keeper.forget(block_id)


class BlockTable:
    """One session's blocks, in order of position. Made by `BlockPool.new_table`."""

    __slots__ = ("_pool", "block_ids", "num_tokens")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.block_ids: list[int] = []
        self.num_tokens = 0  # positions the table has room reserved for

    def adopt(self, first: int, block_ids: list[int]) -> None:
        """Hold these blocks, full of computed KV, from index `first` on; others may hold them too.

        The table's blocks there are given back. It has room for exactly the whole blocks then.
        """
        if not 0 <= first <= len(self.block_ids):
            raise ValueError(f"first must be within 0..{len(self.block_ids)}, got {first}")
        self._pool.share(block_ids)
        self._pool.free(self.block_ids[first:])
        self.block_ids[first:] = block_ids
        self.num_tokens = len(self.block_ids) * self._pool.block_size

    def exchange(self, index: int, block_id: int) -> None:
        """Hold another block of equal content in place of the one at `index`."""
        self._pool.share([block_id])
        self._pool.free([self.block_ids[index]])
        self.block_ids[index] = block_id

    def first_row(self, start: int) -> int:
        """Return the row to compute from so that row `start` can be written: at most `start`.

        It is the block's start within a shared block, because that block must be given up.
        """
        index = start // self._pool.block_size
        if index < len(self.block_ids) and self._pool.is_shared(self.block_ids[index]):
            return index * self._pool.block_size
        return start

    def resize(self, num_tokens: int) -> None:
        """Reserve room for exactly `num_tokens` tokens; what is after them is given back.

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
        num_free = pool.num_free + sum(map(pool.becomes_free, given_up + dropped))
        if num_new > num_free:
            raise OutOfBlocks(num_new, num_free, pool.num_blocks)
        lost = set(given_up)
        pool.free(given_up + dropped)
        new = iter(pool.allocate(num_new))
        entered = [next(new) if block in lost else block for block in entered]
        self.block_ids[first:] = [*entered, *new]
        self.num_tokens = num_tokens

    def free(self) -> None:
        """Give all blocks back. Idempotent; the table can be used again."""
        self.resize(0)

    def checked_blocks(self) -> list[int]:
        """Return the table's blocks, as many as its tokens need and each once.

        Raises:
            AssertionError: they are more or fewer, or one is listed twice.
        """
        wanted = self._pool.blocks_for(self.num_tokens)
        if len(self.block_ids) != wanted:
            raise AssertionError(
                f"a table of {self.num_tokens} tokens has {len(self.block_ids)} blocks, "
                f"not {wanted}"
            )
        if len(set(self.block_ids)) != wanted:
            raise AssertionError(f"a table lists a block twice: {self.block_ids}")
        return self.block_ids
