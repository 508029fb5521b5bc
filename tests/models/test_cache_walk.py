"""Ten thousand random steps over the cache, and proofs that the walk would notice a fault."""

from __future__ import annotations

import pytest
import torch
from cache_walk import Walk

from models import attention_plan
from models.attention_plan import SequenceRows
from models.kv_cache import BlockPool, BlockTable
from models.linear import can_pack
from models.runner import ModelRunner
from models.session_table import Session
from models.token_log import TokenLog

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
    counts = walk.counts
    print(dict(counts), "preempted by the planner:", walk.planner.num_preemptions)
    assert counts["jobs"] > 3000
    assert counts["rows"] > 15_000
    assert counts["several"] > 500
    assert counts["full"] > 500
    assert min(counts["fork"], counts["given up"], walk.planner.num_preemptions) > 100
    assert all(counts[name] > 100 for name in ("open", "extend", "roll_back", "close", "preempt"))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_short_walk(tiny_target, dtype):
    _skip_unless_exact(dtype)
    walk = Walk(tiny_target, dtype, seed=100)
    walk.run(400)
    assert walk.counts["given up"] > 0


# --- one thing wrong at a time: each of these walks must fail -----------------------------------


def _fork_without_references(patch: pytest.MonkeyPatch) -> None:
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


def _share_the_last_block_in_part(patch: pytest.MonkeyPatch) -> None:
    def fork(table: BlockTable, num_tokens: int) -> BlockTable:
        pool = table._pool
        forked = pool.new_table()
        forked.block_ids = table.block_ids[: pool.blocks_for(num_tokens)]
        forked.num_tokens = len(forked.block_ids) * pool.block_size
        pool.share(forked.block_ids)
        return forked

    patch.setattr(BlockTable, "fork", fork)


def _keep_num_computed_on_rollback(patch: pytest.MonkeyPatch) -> None:
    original = Session.rewrite

    def rewrite(session: Session, base_len: int, tokens: list[int]) -> None:
        num_computed = session.num_computed
        original(session, base_len, tokens)
        session.num_computed = min(num_computed, len(session.log))

    patch.setattr(Session, "rewrite", rewrite)


def _reserve_as_if_nothing_were_shared(patch: pytest.MonkeyPatch) -> None:
    def reserve_rows(session: Session, start: int) -> None:
        session.table.resize(len(session.log))

    patch.setattr(Session, "reserve_rows", reserve_rows)


def _keep_num_computed_on_preemption(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Session, "release_blocks", lambda session: session.table.free())


def _leave_what_a_former_owner_wrote(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ModelRunner, "_clear_new_blocks", lambda runner, sequences: None)


def _read_blocks_behind_the_last_row(patch: pytest.MonkeyPatch) -> None:
    def num_blocks_read(sequence: SequenceRows, block_size: int) -> int:
        return len(sequence.table.block_ids)

    patch.setattr(attention_plan, "_num_blocks_read", num_blocks_read)


def _truncate_ids_but_not_hashes(patch: pytest.MonkeyPatch) -> None:
    def truncate(log: TokenLog, length: int) -> None:
        del log.ids[length:]

    patch.setattr(TokenLog, "truncate", truncate)


def _truncate_one_too_few(patch: pytest.MonkeyPatch) -> None:
    def truncate(log: TokenLog, length: int) -> None:
        del log.ids[length + 1 :]
        del log._hashes[length + 2 :]

    patch.setattr(TokenLog, "truncate", truncate)


@pytest.mark.parametrize(
    "damage",
    [
        _fork_without_references,
        _free_shared_blocks,
        _never_free_shared_blocks,
        _write_into_shared_blocks,
        _plan_rows_within_shared_blocks,
        _share_the_last_block_in_part,
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
    walk = Walk(tiny_target, "float32", seed=0)
    damage(monkeypatch)
    with pytest.raises((AssertionError, ValueError)) as caught:
        walk.run(2000)
    print(f"step {walk.num_steps}: {caught.value!r:.200}")
