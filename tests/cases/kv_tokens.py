"""Counts the tokens that an engine keeps in its KV cache."""

from __future__ import annotations

from models.engine.base import Engine


def num_kv_tokens(engine: Engine) -> int:
    """Computed tokens; a block that several sessions list counts with what most of it holds."""
    block_size = engine.runner.pool.block_size
    in_block: dict[int, int] = {}
    for session in engine.sessions:
        left = session.num_computed_tokens
        for block in session.table.block_ids:
            if left <= 0:
                break
            in_block[block] = max(in_block.get(block, 0), min(left, block_size))
            left -= block_size
    return sum(in_block.values())
