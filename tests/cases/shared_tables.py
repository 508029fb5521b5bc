"""Tables that share blocks, as those of sessions do that found the same prefix in the cache."""

from __future__ import annotations

from models.kv.block_pool import BlockPool, BlockTable


def fork(pool: BlockPool, table: BlockTable, num_tokens: int) -> BlockTable:
    """A new table with the whole blocks within the first `num_tokens` tokens of `table`."""
    forked = pool.new_table()
    forked.adopt(0, table.block_ids[: num_tokens // pool.block_size])
    return forked
