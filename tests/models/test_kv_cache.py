from __future__ import annotations

import random

import pytest

from models.kv_cache import BlockPool, BlockTable, OutOfBlocks


def test_resize_grows_and_shrinks_by_whole_blocks():
    pool = BlockPool(num_blocks=8, block_size=16)
    table = pool.new_table()
    table.resize(17)
    assert len(table.block_ids) == 2
    first = table.block_ids[0]
    table.resize(16)
    assert table.block_ids == [first]
    assert pool.num_free == 7
    table.resize(1)
    assert table.block_ids == [first]
    table.resize(0)
    assert table.block_ids == []
    assert pool.num_free == 8


def test_out_of_blocks_changes_nothing():
    pool = BlockPool(num_blocks=3, block_size=4)
    first, second = pool.new_table(), pool.new_table()
    first.resize(5)
    second.resize(3)
    before = (list(first.block_ids), first.num_tokens, pool.num_free)
    with pytest.raises(OutOfBlocks, match="1 KV blocks wanted, 0 of 3 are free"):
        first.resize(9)
    assert (list(first.block_ids), first.num_tokens, pool.num_free) == before
    pool.check([first, second])


def test_free_is_idempotent_and_the_table_can_be_used_again():
    pool = BlockPool(num_blocks=2, block_size=4)
    table = pool.new_table()
    table.resize(8)
    table.free()
    table.free()
    pool.check([table])
    table.resize(8)
    pool.check([table])


def test_negative_sizes_are_refused():
    pool = BlockPool(num_blocks=2, block_size=4)
    with pytest.raises(ValueError, match="got -1"):
        pool.new_table().resize(-1)
    with pytest.raises(ValueError, match="holds nothing"):
        BlockPool(num_blocks=0, block_size=4)


def _lose_block(pool: BlockPool, table: BlockTable) -> None:
    pool.allocate(1)


def _share_block(pool: BlockPool, table: BlockTable) -> None:
    pool.free(table.block_ids[:1])


def _misstate_length(pool: BlockPool, table: BlockTable) -> None:
    table.num_tokens += 4


@pytest.mark.parametrize("damage", [_lose_block, _share_block, _misstate_length])
def test_check_finds_damage(damage):
    pool = BlockPool(num_blocks=4, block_size=4)
    table = pool.new_table()
    table.resize(8)
    pool.check([table])
    damage(pool, table)
    with pytest.raises(AssertionError):
        pool.check([table])


def test_check_finds_a_forgotten_table():
    pool = BlockPool(num_blocks=4, block_size=4)
    pool.new_table().resize(8)
    with pytest.raises(AssertionError, match="do not make up 4"):
        pool.check([])


@pytest.mark.parametrize("seed", range(5))
def test_random_operations_keep_the_pool_whole(seed):
    choose = random.Random(seed)
    pool = BlockPool(num_blocks=20, block_size=4)
    tables = [pool.new_table() for _ in range(5)]
    for _ in range(400):
        table = choose.choice(tables)
        before = (list(table.block_ids), table.num_tokens)
        wanted = choose.choice([0, choose.randrange(40), table.num_tokens + 1])
        try:
            table.resize(wanted)
        except OutOfBlocks:
            assert (table.block_ids, table.num_tokens) == before
        else:
            kept = min(len(before[0]), len(table.block_ids))
            assert table.block_ids[:kept] == before[0][:kept]
        pool.check(tables)
    for table in tables:
        table.free()
    assert pool.num_free == 20
