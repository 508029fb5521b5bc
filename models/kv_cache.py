"""Which KV block belongs to which session. Plain ints; knows nothing of tensors or models.

A block is `block_size` consecutive token slots: block b holds slots
[b * block_size, (b + 1) * block_size). A block table lists a session's blocks in order, so the
KV of its position i is in slot `block_ids[i // block_size] * block_size + i % block_size`.
Extending and rolling back are both `BlockTable.resize`, to a number of tokens.

Invariant: free blocks + blocks in tables = all blocks, and no block is in two places;
`BlockPool.check` proves it. Vocabulary and idea: vLLM, arXiv 2309.06180.
"""

from __future__ import annotations

from collections.abc import Iterable


class OutOfBlocks(Exception):
    """The pool has fewer free blocks than were asked for. Nothing was changed."""


class BlockPool:
    """All KV blocks of one model on one device.

    Args:
        num_blocks: blocks in the pool.
        block_size: tokens per block.
    """

    __slots__ = ("_free", "block_size", "num_blocks")

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"a pool of {num_blocks} blocks of {block_size} tokens holds nothing")
        self.num_blocks = num_blocks
        self.block_size = block_size
        # A stack: the block freed last is handed out first, while it may still be in a cache.
        self._free = list(range(num_blocks - 1, -1, -1))

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
        """Hand out `count` blocks.

        Raises:
            OutOfBlocks: fewer than `count` are free; the pool is unchanged.
        """
        if count > len(self._free):
            raise OutOfBlocks(
                f"{count} KV blocks wanted, {len(self._free)} of {self.num_blocks} are free"
            )
        first = len(self._free) - count
        blocks = self._free[first:][::-1]
        del self._free[first:]
        return blocks

    def free(self, block_ids: Iterable[int]) -> None:
        """Take back blocks that `allocate` handed out, each once."""
        self._free.extend(reversed(list(block_ids)))

    def check(self, tables: Iterable[BlockTable]) -> None:
        """Prove that `tables` (all that exist) and the free blocks make up the pool exactly.

        Raises:
            AssertionError: a block is lost, is in two places, or a table has the wrong length.
        """
        held = list(self._free)
        for table in tables:
            wanted = self.blocks_for(table.num_tokens)
            if len(table.block_ids) != wanted:
                raise AssertionError(
                    f"a table of {table.num_tokens} tokens has {len(table.block_ids)} blocks, "
                    f"not {wanted}"
                )
            held.extend(table.block_ids)
        if sorted(held) != list(range(self.num_blocks)):
            raise AssertionError(
                f"{len(self._free)} free + {len(held) - len(self._free)} used blocks "
                f"({len(set(held))} different ones) do not make up {self.num_blocks}"
            )


class BlockTable:
    """One session's blocks, in order of position. Made by `BlockPool.new_table`."""

    __slots__ = ("_pool", "block_ids", "num_tokens")

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.block_ids: list[int] = []
        self.num_tokens = 0  # positions the table has room reserved for

    def resize(self, num_tokens: int) -> None:
        """Reserve room for exactly `num_tokens` tokens; what is behind them is given back.

        Raises:
            OutOfBlocks: the pool has too few free blocks; the table is unchanged.
        """
        if num_tokens < 0:
            raise ValueError(f"num_tokens must not be negative, got {num_tokens}")
        wanted = self._pool.blocks_for(num_tokens)
        held = len(self.block_ids)
        if wanted > held:
            self.block_ids.extend(self._pool.allocate(wanted - held))
        elif wanted < held:
            self._pool.free(self.block_ids[wanted:])
            del self.block_ids[wanted:]
        self.num_tokens = num_tokens

    def free(self) -> None:
        """Give all blocks back. Idempotent; the table can be used again."""
        self.resize(0)
