"""The blocks of a prefix cache: chains of whole blocks of token ids, each with its KV block.

    salt -> [ids 0..15] -> [ids 16..31] -> ...        one `CachedBlock` each

A block is looked up by the rolling hash of all tokens up to its end. It is then compared id by id,
its predecessor included. So a collision of hashes costs a miss and never serves another text.

There are no references here. `BlockPool` keeps a published block when its last table lets go. It
takes back the one unused for longest when no other block is free. Tables hold whole chains and let
go of the ends first. So no block ever goes before its successors.

Knows no sessions. Invariants: a published block is kept by the pool, can be found, and so can its
predecessor. The published blocks of a table come first, and they are one chain.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from models.kv.block_pool import BlockPool, BlockTable

Key = tuple[tuple[str, str], int]  # `Open.salt`, hash of all tokens up to a block's end


@dataclass(frozen=True, slots=True, eq=False)
class CachedBlock:
    """One block of a chain."""

    block_id: int
    key: Key
    ids: Sequence[int]  # ids of the block alone
    parent: CachedBlock | None

    def holds(self, ids: Sequence[int], parent: CachedBlock | None) -> bool:
        """Return whether the block really has these ids after that predecessor."""
        return self.parent is parent and self.ids == ids


class PublishedBlocks:
    """The published blocks of one pool.

    Args:
        pool: where the blocks are.

    Attributes:
        by_key: all of them by what they hold.
        by_block: all of them by the block of the pool.
        num_evictions: blocks that the pool took back.
    """

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool
        self.by_key: dict[Key, CachedBlock] = {}
        self.by_block: dict[int, CachedBlock] = {}
        self.num_evictions = 0

    @property
    def num_blocks(self) -> int:
        """The number of published blocks."""
        return len(self.by_block)

    def add(
        self, block_id: int, key: Key, ids: Sequence[int], parent: CachedBlock | None
    ) -> CachedBlock:
        """Publish a block of some table; `key` has none yet."""
        block = CachedBlock(block_id, key, ids, parent)
        self.by_key[key] = self.by_block[block_id] = block
        self._pool.keep(block_id)
        return block

    def forget(self, block_id: int) -> None:
        """Forget a block, because the pool takes it back: see `BlockKeeper`."""
        block = self.by_block.pop(block_id)
        del self.by_key[block.key]
        self.num_evictions += 1

    def num_first(self, block_ids: Sequence[int], limit: int) -> int:
        """Return how many of a table's first `limit` blocks are published: they come first."""
        while limit > 0 and block_ids[limit - 1] not in self.by_block:
            limit -= 1
        return limit

    def check(self, tables: Iterable[BlockTable]) -> None:
        """Prove the invariants above; `tables` are all that exist.

        Raises:
            AssertionError: a published block is not kept or cannot be found, lacks its
                predecessor, or is in a table that does not hold its predecessor before it.
        """
        if sorted(b.block_id for b in self.by_key.values()) != sorted(self.by_block):
            raise AssertionError(f"{len(self.by_key)} keys of {len(self.by_block)} blocks")
        for block in self.by_block.values():
            if not self._pool.is_kept(block.block_id) or self.by_key[block.key] is not block:
                raise AssertionError(f"published block {block.block_id} is lost")
            if block.parent is not None and self.by_key.get(block.parent.key) is not block.parent:
                raise AssertionError(f"block {block.block_id} has outlived its predecessor")
        for table in tables:
            held = [self.by_block.get(block) for block in table.block_ids]
            for before, after in pairwise([None, *held]):
                if after is not None and after.parent is not before:
                    raise AssertionError(f"table {table.block_ids} holds half a chain")
