from __future__ import annotations

import random
from collections.abc import Callable

import pytest

from models.kv.block_pool import BlockPool, BlockTable, OutOfBlocks
from tests.cases.cache_walk import fork


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


def test_free_is_idempotent_and_the_table_can_be_used_again():
    pool = BlockPool(num_blocks=2, block_size=4)
    table = pool.new_table()
    table.resize(8)
    table.free()
    table.free()
    pool.check([table])
    table.resize(8)
    pool.check([table])


def test_impossible_sizes_are_refused():
    pool = BlockPool(num_blocks=2, block_size=4)
    table = pool.new_table()
    with pytest.raises(ValueError, match="got -1"):
        table.resize(-1)
    table.resize(6)
    with pytest.raises(ValueError, match=r"start must be within 0\.\.5, got 6"):
        table.reserve(5, 6)
    with pytest.raises(ValueError, match=r"first must be within 0\.\.2, got 3"):
        table.adopt(3, [])
    pool.check([table])
    with pytest.raises(ValueError, match="holds nothing"):
        BlockPool(num_blocks=0, block_size=4)


def _list_a_block_twice(pool: BlockPool, table: BlockTable) -> None:
    pool.free(table.block_ids[1:])
    table.block_ids[1] = table.block_ids[0]
    pool.share(table.block_ids[:1])


DAMAGES: dict[str, Callable[[BlockPool, BlockTable], object]] = {
    "a lost block": lambda pool, table: pool.allocate(1),
    "a block that is free and in a table": lambda pool, table: pool.free(table.block_ids[:1]),
    "a reference too many": lambda pool, table: pool.share(table.block_ids[:1]),
    "a block twice": _list_a_block_twice,
    "another length": lambda pool, table: setattr(table, "num_tokens", 12),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_check_finds(damage):
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


def _shared_tables(num_blocks: int = 8) -> tuple[BlockPool, BlockTable, BlockTable]:
    """A table of three blocks of four tokens and a fork of its first two."""
    pool = BlockPool(num_blocks, block_size=4)
    table = pool.new_table()
    table.resize(12)
    return pool, table, fork(pool, table, 11)


def test_a_fork_shares_whole_blocks_only():
    pool, table, forked = _shared_tables()
    assert (forked.block_ids, forked.num_tokens) == (table.block_ids[:2], 8)
    assert pool.num_free == 5
    pool.check([table, forked])
    assert fork(pool, pool.new_table(), 0).block_ids == []


def test_shared_blocks_are_free_when_the_last_table_lets_go():
    pool, table, forked = _shared_tables()
    table.free()
    assert pool.num_free == 6
    pool.check([table, forked])
    forked.resize(4)
    assert pool.num_free == 7
    forked.free()
    assert pool.num_free == 8
    pool.check([table, forked])


@pytest.mark.parametrize(
    ("start", "first_row"), [(3, 0), (4, 4), (5, 4), (8, 8), (10, 10), (12, 12), (40, 40)]
)
def test_rows_in_a_shared_block_are_computed_from_its_start(start, first_row):
    _, table, _ = _shared_tables()
    assert table.first_row(start) == first_row


def test_a_shared_block_is_given_up_before_it_is_written():
    pool, table, forked = _shared_tables()
    before = list(table.block_ids)
    table.reserve(14, 4)
    assert table.block_ids[0] == before[0]
    assert table.block_ids[1] not in before
    assert table.block_ids[2] == before[2]  # it was the table's own: what it held may go
    assert forked.block_ids == before[:2]
    pool.check([table, forked])
    assert pool.writes_shared(table.block_ids, 0, 14)
    assert pool.writes_shared(table.block_ids, 3, 5)
    assert not pool.writes_shared(table.block_ids, 4, 14)
    kept = list(table.block_ids)
    table.reserve(14, 6)
    assert table.block_ids == kept


def test_rows_before_the_start_are_never_lost():
    pool, table, forked = _shared_tables()
    with pytest.raises(ValueError, match="row 5 is within a shared block"):
        table.reserve(12, 5)
    table.reserve(6, 6)  # nothing is written: nothing has to be given up
    assert table.block_ids == forked.block_ids
    pool.check([table, forked])


def test_out_of_blocks_changes_nothing():
    pool, table, forked = _shared_tables(num_blocks=4)
    before = (list(table.block_ids), list(forked.block_ids), pool.num_free)
    with pytest.raises(OutOfBlocks, match="2 KV blocks wanted, 1 of 4 are free"):
        table.reserve(12, 0)
    assert (table.block_ids, forked.block_ids, pool.num_free) == before
    assert table.num_tokens == 12
    pool.check([table, forked])


def test_blocks_given_back_serve_for_those_given_up():
    pool, table, forked = _shared_tables(num_blocks=3)
    last = table.block_ids[2]
    table.reserve(7, 4)
    assert table.block_ids == [forked.block_ids[0], last]
    assert pool.num_free == 0
    pool.check([table, forked])


@pytest.mark.parametrize("seed", range(5))
def test_random_operations_keep_the_pool_whole(seed):
    choose = random.Random(seed)
    pool = BlockPool(num_blocks=20, block_size=4)
    tables = [pool.new_table() for _ in range(5)]
    for _ in range(400):
        table = choose.choice(tables)
        if choose.random() < 0.2:
            other = choose.choice([each for each in tables if each is not table])
            other.free()
            tables[tables.index(other)] = fork(pool, table, choose.randint(0, table.num_tokens))
            pool.check(tables)
            continue
        before = (list(table.block_ids), table.num_tokens)
        wanted = choose.choice([0, choose.randrange(40), table.num_tokens + 1])
        start = table.first_row(choose.randint(0, wanted))
        try:
            table.reserve(wanted, start)
        except OutOfBlocks:
            assert (table.block_ids, table.num_tokens) == before
        else:
            kept = min(len(before[0]), pool.blocks_for(start))
            assert table.block_ids[:kept] == before[0][:kept]
            assert not pool.writes_shared(table.block_ids, start, wanted)
        pool.check(tables)
    for table in tables:
        table.free()
    assert pool.num_free == 20


# --- kept blocks ---------------------------------------------------------------------------------


class Evicted(list[int]):
    """A keeper: the blocks that were evicted."""

    def forget(self, block_id: int) -> None:
        self.append(block_id)


def _kept_table(num_blocks: int = 4) -> tuple[BlockPool, BlockTable, Evicted]:
    """A table of three kept blocks of four tokens; the list fills with blocks that are evicted."""
    pool = BlockPool(num_blocks, block_size=4)
    evicted = Evicted()
    pool.start_keeping(evicted)
    table = pool.new_table()
    table.resize(12)
    for block in table.block_ids:
        pool.keep(block)
    return pool, table, evicted


def test_kept_blocks_are_idle_when_the_last_table_lets_go_and_count_as_free():
    pool, table, evicted = _kept_table()
    blocks = list(table.block_ids)
    table.free()
    pool.check([table])
    assert pool.num_free == 4
    table.adopt(0, blocks[:2])
    assert (pool.num_free, table.num_tokens) == (2, 8)
    pool.check([table])
    assert evicted == []


def test_the_end_of_a_chain_is_evicted_first_and_only_for_want_of_free_blocks():
    pool, table, evicted = _kept_table()
    blocks = list(table.block_ids)
    table.free()
    other = pool.new_table()
    other.resize(4)
    assert evicted == []
    other.resize(12)
    assert evicted == [blocks[2], blocks[1]]
    assert [pool.is_kept(block) for block in blocks] == [True, False, False]
    other.resize(16)
    assert evicted == [blocks[2], blocks[1], blocks[0]]
    pool.check([table, other])


def test_blocks_in_a_table_are_never_evicted():
    pool, table, evicted = _kept_table()
    forked = fork(pool, table, 8)
    table.free()
    other = pool.new_table()
    with pytest.raises(OutOfBlocks, match="3 KV blocks wanted, 2 of 4 are free"):
        other.resize(12)
    other.resize(8)
    assert len(evicted) == 1
    assert not {*evicted, *other.block_ids} & set(forked.block_ids)
    pool.check([table, forked, other])


def test_what_was_used_last_is_evicted_last():
    pool, table, evicted = _kept_table(num_blocks=6)
    first = list(table.block_ids)
    table.free()
    table.resize(12)
    second = list(table.block_ids)
    for block in second:
        pool.keep(block)
    table.free()
    table.adopt(0, first[:1])
    table.free()
    table.resize(20)
    assert evicted == [first[2], first[1], second[2], second[1], second[0]]
    pool.check([table])


def test_a_kept_block_is_not_written_even_by_its_only_table():
    pool, table, evicted = _kept_table(num_blocks=3)
    before = list(table.block_ids)
    assert table.first_row(6) == 4
    assert pool.writes_shared(table.block_ids, 6, 7)
    table.reserve(12, 4)  # its own blocks, given up, are all there is: they lose what they held
    assert table.block_ids[0] == before[0]
    assert sorted(evicted) == sorted(before[1:])
    assert not pool.writes_shared(table.block_ids, 4, 12)
    pool.check([table])


def test_a_new_keeper_lets_go_of_what_is_kept_for_one_that_is_gone():
    pool, table, keeper = _kept_table()
    forked = fork(pool, table, 4)
    table.free()
    with pytest.raises(ValueError, match="prefix cache of another engine"):
        pool.start_keeping(Evicted())
    assert pool.is_shared(forked.block_ids[0])
    del keeper
    evicted = Evicted()
    pool.start_keeping(evicted)
    assert evicted == []
    assert not pool.is_shared(forked.block_ids[0])
    pool.check([table, forked])


def test_check_finds_an_idle_block_that_is_not_kept():
    pool, table, _ = _kept_table()
    table.free()
    pool.check([table])
    pool._kept.pop()
    with pytest.raises(AssertionError, match="kept"):
        pool.check([table])
