"""Ten thousand random steps over the cache, and proofs that the walk would notice a fault."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models.engine.runner import ModelRunner
from models.kv.block_pool import BlockPool, BlockTable
from models.kv.rows import SequenceRows
from models.layers.linear import can_pack
from models.protocol import token_sequence
from models.protocol.token_sequence import TokenSequence
from models.scheduler.prefix_cache import PrefixCache
from models.scheduler.published_blocks import CachedBlock, PublishedBlocks
from models.scheduler.sessions import Session
from tests.cases.cache_walk import Walk

NUM_STEPS = 10_000


def _skip_unless_exact(dtype: str) -> None:
    if not can_pack(getattr(torch, dtype)):
        pytest.skip(f"this CPU or torch has no packed kernel for {dtype}")


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_ten_thousand_steps_keep_the_pool_whole_and_every_bit(tiny_target, dtype, seed):
    _skip_unless_exact(dtype)
    walk = Walk(tiny_target, dtype, seed)
    walk.run(NUM_STEPS)
    counts, cache = walk.counts, walk.cache
    print(
        dict(counts),
        f"preempted by the planner: {walk.planner.num_preemptions}, "
        f"found {cache.num_hits} of {cache.num_queries} tokens, "
        f"evicted {cache.published.num_evictions}",
    )
    assert counts["jobs"] > 3000
    assert counts["rows"] > 15_000
    assert counts["several"] > 500
    assert counts["full"] > 500
    assert min(counts["given up"], walk.planner.num_preemptions) > 100
    assert min(cache.num_hits, cache.published.num_evictions) > 1000
    assert counts["awaited"] > 20
    assert all(counts[name] > 90 for name in ("open", "extend", "roll_back", "close", "preempt"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_short_walk(tiny_target, dtype):
    _skip_unless_exact(dtype)
    walk = Walk(tiny_target, dtype, seed=100)
    walk.run(400)
    assert min(walk.counts["given up"], walk.cache.num_hits, walk.cache.published.num_evictions) > 0


HASHES_THAT_COLLIDE = (token_sequence, "_MODULUS", 31)


def test_colliding_hashes_serve_nobody_anothers_text(tiny_target, monkeypatch):
    _skip_unless_exact("float32")
    monkeypatch.setattr(*HASHES_THAT_COLLIDE)
    walk = Walk(tiny_target, "float32", seed=0)
    walk.run(1000)
    assert walk.cache.num_hits > 0


# --- one thing wrong at a time: each of these walks must fail -----------------------------------

_free = BlockPool.free
_publish = PrefixCache.publish
_key = PrefixCache._key
_adopt_blocks = Session.adopt_blocks
_rewrite = Session.rewrite


def free_shared_blocks(pool: BlockPool, block_ids: list[int]) -> None:
    for block in reversed(list(block_ids)):
        pool._num_refs[block] -= 1
        pool._free.append(block)


def free_no_shared_blocks(pool: BlockPool, block_ids: list[int]) -> None:
    _free(pool, [block for block in block_ids if not pool.is_shared(block)])


def free_the_start_of_a_chain_first(pool: BlockPool, block_ids: list[int]) -> None:
    _free(pool, list(block_ids)[::-1])


def share_and_leave_idle(pool: BlockPool, block_ids: list[int]) -> None:
    for block in block_ids:
        pool._num_refs[block] += 1


def publish_drafts(cache: PrefixCache, sessions: list[Session]) -> None:
    for session in sessions:
        session.committed_len = session.num_computed_tokens
    _publish(cache, sessions)


def publish_what_is_not_computed(cache: PrefixCache, sessions: list[Session]) -> None:
    computed = [session.num_computed_tokens for session in sessions]
    for session in sessions:
        session.num_computed_tokens = min(session.table.num_tokens, session.committed_len)
    _publish(cache, sessions)
    for session, num_computed_tokens in zip(sessions, computed, strict=True):
        session.num_computed_tokens = num_computed_tokens


def key_without_salt(cache: PrefixCache, session: Session, index: int) -> tuple[str, int]:
    return "", _key(cache, session, index)[1]


def adopt_a_part_of_a_block(session: Session, first: int, block_ids: list[int]) -> None:
    _adopt_blocks(session, first, block_ids)
    session.num_computed_tokens += 1


def rewrite_and_keep_num_computed(session: Session, base_len: int, tokens: list[int]) -> None:
    num_computed_tokens = session.num_computed_tokens
    _rewrite(session, base_len, tokens)
    session.num_computed_tokens = min(num_computed_tokens, len(session.tokens))


def truncate_ids_but_not_hashes(log: TokenSequence, length: int) -> None:
    del log.ids[length:]


def truncate_one_too_few(log: TokenSequence, length: int) -> None:
    del log.ids[length + 1 :]
    del log._hashes[length + 2 :]


# What is replaced: an object, the name of its attribute, and what stands in its place.
DAMAGES: dict[str, list[tuple[Any, str, Any]]] = {
    "shares without references": [(BlockPool, "share", lambda pool, block_ids: None)],
    "frees shared blocks": [(BlockPool, "free", free_shared_blocks)],
    "never frees shared blocks": [(BlockPool, "free", free_no_shared_blocks)],
    "writes into shared blocks": [(BlockPool, "is_shared", lambda pool, block_id: False)],
    "plans rows within shared blocks": [(BlockTable, "first_row", lambda table, start: start)],
    "publishes what is drafted": [(PrefixCache, "publish", publish_drafts)],
    "publishes what is not computed": [
        (PrefixCache, "publish", publish_what_is_not_computed),
        (PrefixCache, "_are_sound", lambda cache, fresh: True),
    ],
    "compares no ids": [
        HASHES_THAT_COLLIDE,
        (CachedBlock, "holds", lambda block, ids, parent: True),
    ],
    "shares across salts": [(PrefixCache, "_key", key_without_salt)],
    "holds two blocks of one text": [(BlockTable, "exchange", lambda table, index, block: None)],
    "evicts blocks in use": [(BlockPool, "share", share_and_leave_idle)],
    "evicts the start of a chain first": [(BlockPool, "free", free_the_start_of_a_chain_first)],
    "evicts without a word": [(PublishedBlocks, "forget", lambda cache, block_id: None)],
    "writes into kept blocks": [(BlockPool, "is_shared", lambda pool, i: pool._num_refs[i] > 1)],
    "takes a part of a block": [(Session, "adopt_blocks", adopt_a_part_of_a_block)],
    "keeps num_computed on rollback": [(Session, "rewrite", rewrite_and_keep_num_computed)],
    "reserves as if nothing were shared": [
        (Session, "reserve_rows", lambda session, start: session.table.resize(len(session.tokens)))
    ],
    "keeps num_computed on preemption": [
        (Session, "release_blocks", lambda session: session.table.free())
    ],
    "leaves what a former owner wrote": [
        (ModelRunner, "_clear_new_blocks", lambda runner, sequences: None)
    ],
    "reads blocks behind the last row": [
        (SequenceRows, "num_blocks_read", lambda rows, block_size: len(rows.table.block_ids))
    ],
    "truncates ids but not hashes": [(TokenSequence, "truncate", truncate_ids_but_not_hashes)],
    "truncates one too few": [(TokenSequence, "truncate", truncate_one_too_few)],
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_walk_finds_that_it(tiny_target, monkeypatch, damage):
    _skip_unless_exact("float32")
    for owner, name, replacement in DAMAGES[damage]:
        monkeypatch.setattr(owner, name, replacement)
    walk = Walk(tiny_target, "float32", seed=0)
    with pytest.raises((AssertionError, ValueError, LookupError)) as caught:
        walk.run(2000)
    print(f"step {walk.num_steps}: {caught.value!r:.200}")
