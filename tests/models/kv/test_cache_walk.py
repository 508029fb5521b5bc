"""Ten thousand random steps over the cache, and proofs that the walk would notice a fault."""

from __future__ import annotations

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


def _make_hashes_collide(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(token_sequence, "_MODULUS", 31)


def test_colliding_hashes_serve_nobody_anothers_text(tiny_target, monkeypatch):
    _skip_unless_exact("float32")
    _make_hashes_collide(monkeypatch)
    walk = Walk(tiny_target, "float32", seed=0)
    walk.run(1000)
    assert walk.cache.num_hits > 0


# --- one thing wrong at a time: each of these walks must fail -----------------------------------


def _share_without_references(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockPool, "share", lambda pool, block_ids: None)


def _free_shared_blocks(patch: pytest.MonkeyPatch) -> None:
    def free(pool: BlockPool, block_ids: list[int]) -> None:
        for block in reversed(list(block_ids)):
            pool._num_refs[block] -= 1
            pool._free.append(block)

    patch.setattr(BlockPool, "free", free)


def _never_free_shared_blocks(patch: pytest.MonkeyPatch) -> None:
    original = BlockPool.free

    def free(pool: BlockPool, block_ids: list[int]) -> None:
        original(pool, [block for block in block_ids if not pool.is_shared(block)])

    patch.setattr(BlockPool, "free", free)


def _write_into_shared_blocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockPool, "is_shared", lambda pool, block_id: False)


def _plan_rows_within_shared_blocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockTable, "first_row", lambda table, start: start)


def _publish_what_is_drafted(patch: pytest.MonkeyPatch) -> None:
    original = PrefixCache.publish

    def publish(cache: PrefixCache, sessions: list[Session]) -> None:
        for session in sessions:
            session.committed_len = session.num_computed_tokens
        original(cache, sessions)

    patch.setattr(PrefixCache, "publish", publish)


def _publish_what_is_not_computed(patch: pytest.MonkeyPatch) -> None:
    original = PrefixCache.publish

    def publish(cache: PrefixCache, sessions: list[Session]) -> None:
        computed = [session.num_computed_tokens for session in sessions]
        for session in sessions:
            session.num_computed_tokens = min(session.table.num_tokens, session.committed_len)
        original(cache, sessions)
        for session, num_computed_tokens in zip(sessions, computed, strict=True):
            session.num_computed_tokens = num_computed_tokens

    patch.setattr(PrefixCache, "publish", publish)
    patch.setattr(PrefixCache, "_are_sound", lambda cache, fresh: True)


def _compare_no_ids(patch: pytest.MonkeyPatch) -> None:
    _make_hashes_collide(patch)
    patch.setattr(CachedBlock, "holds", lambda block, ids, parent: True)


def _share_across_salts(patch: pytest.MonkeyPatch) -> None:
    original = PrefixCache._key

    def key(cache: PrefixCache, session: Session, index: int) -> tuple[str, int]:
        return "", original(cache, session, index)[1]

    patch.setattr(PrefixCache, "_key", key)


def _hold_two_blocks_of_one_text(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockTable, "exchange", lambda table, index, block_id: None)


def _evict_blocks_in_use(patch: pytest.MonkeyPatch) -> None:
    def share(pool: BlockPool, block_ids: list[int]) -> None:
        for block in block_ids:
            pool._num_refs[block] += 1

    patch.setattr(BlockPool, "share", share)


def _evict_the_start_of_a_chain_first(patch: pytest.MonkeyPatch) -> None:
    original = BlockPool.free

    def free(pool: BlockPool, block_ids: list[int]) -> None:
        original(pool, list(block_ids)[::-1])

    patch.setattr(BlockPool, "free", free)


def _evict_without_a_word(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(PublishedBlocks, "forget", lambda cache, block_id: None)


def _write_into_kept_blocks(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BlockPool, "is_shared", lambda pool, block_id: pool._num_refs[block_id] > 1)


def _take_a_part_of_a_block(patch: pytest.MonkeyPatch) -> None:
    original = Session.adopt_blocks

    def adopt_blocks(session: Session, first: int, block_ids: list[int]) -> None:
        original(session, first, block_ids)
        session.num_computed_tokens += 1

    patch.setattr(Session, "adopt_blocks", adopt_blocks)


def _keep_num_computed_on_rollback(patch: pytest.MonkeyPatch) -> None:
    original = Session.rewrite

    def rewrite(session: Session, base_len: int, tokens: list[int]) -> None:
        num_computed_tokens = session.num_computed_tokens
        original(session, base_len, tokens)
        session.num_computed_tokens = min(num_computed_tokens, len(session.tokens))

    patch.setattr(Session, "rewrite", rewrite)


def _reserve_as_if_nothing_were_shared(patch: pytest.MonkeyPatch) -> None:
    def reserve_rows(session: Session, start: int) -> None:
        session.table.resize(len(session.tokens))

    patch.setattr(Session, "reserve_rows", reserve_rows)


def _keep_num_computed_on_preemption(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "release_blocks", lambda session: session.table.free())


def _leave_what_a_former_owner_wrote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelRunner, "_clear_new_blocks", lambda runner, sequences: None)


def _read_blocks_behind_the_last_row(patch: pytest.MonkeyPatch) -> None:
    def num_blocks_read(sequence: SequenceRows, block_size: int) -> int:
        return len(sequence.table.block_ids)

    patch.setattr(SequenceRows, "num_blocks_read", num_blocks_read)


def _truncate_ids_but_not_hashes(patch: pytest.MonkeyPatch) -> None:
    def truncate(log: TokenSequence, length: int) -> None:
        del log.ids[length:]

    patch.setattr(TokenSequence, "truncate", truncate)


def _truncate_one_too_few(patch: pytest.MonkeyPatch) -> None:
    def truncate(log: TokenSequence, length: int) -> None:
        del log.ids[length + 1 :]
        del log._hashes[length + 2 :]

    patch.setattr(TokenSequence, "truncate", truncate)


@pytest.mark.parametrize(
    "damage",
    [
        _share_without_references,
        _free_shared_blocks,
        _never_free_shared_blocks,
        _write_into_shared_blocks,
        _plan_rows_within_shared_blocks,
        _publish_what_is_drafted,
        _publish_what_is_not_computed,
        _compare_no_ids,
        _share_across_salts,
        _hold_two_blocks_of_one_text,
        _evict_blocks_in_use,
        _evict_the_start_of_a_chain_first,
        _evict_without_a_word,
        _write_into_kept_blocks,
        _take_a_part_of_a_block,
        _keep_num_computed_on_rollback,
        _reserve_as_if_nothing_were_shared,
        _keep_num_computed_on_preemption,
        _leave_what_a_former_owner_wrote,
        _read_blocks_behind_the_last_row,
        _truncate_ids_but_not_hashes,
        _truncate_one_too_few,
    ],
)
def test_the_walk_finds(tiny_target, monkeypatch, damage):
    _skip_unless_exact("float32")
    damage(monkeypatch)
    walk = Walk(tiny_target, "float32", seed=0)
    with pytest.raises((AssertionError, ValueError, LookupError)) as caught:
        walk.run(2000)
    print(f"step {walk.num_steps}: {caught.value!r:.200}")
