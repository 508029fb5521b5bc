from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from models.block_reads import BlockReads, plan_reads

NUM_BLOCKS = 40
NULL = NUM_BLOCKS
CPU = torch.device("cpu")
# What each block holds: its own number, in a storage of one key head, one token and one value.
STORAGE = torch.arange(NUM_BLOCKS + 1.0).view(-1, 1, 1, 1)


def read(reads: BlockReads) -> list[int]:
    """The blocks that are read, in their order."""
    return [int(block) for part in reads.parts(STORAGE) for block in part.flatten()]


def by_session(reads: BlockReads, num_sessions: int, num_blocks: int) -> list[list[int]]:
    """What the sessions find at their J places; behind their last block as for scores."""
    blocks = torch.tensor(read(reads))
    if reads.sorting is not None:
        blocks = blocks[reads.sorting.owned]
    return blocks.view(num_sessions, num_blocks).tolist()


@st.composite
def tables(draw: st.DrawFn) -> list[list[int]]:
    """Tables of sessions that may begin alike, of blocks side by side or scattered."""
    if draw(st.booleans()):
        ids = list(range(draw(st.integers(0, 5)), NUM_BLOCKS))
    else:
        ids = draw(st.permutations(range(NUM_BLOCKS)))
    made: list[list[int]] = []
    for size in draw(st.lists(st.integers(1, 8), min_size=1, max_size=5)):
        shared = draw(st.sampled_from(made))[: draw(st.integers(0, 3))] if made else []
        own = [ids.pop(0) for _ in range(size) if ids]
        made.append([*shared, *own] or [0])
    return made


@given(tables(), st.integers(0, 3))
def test_every_session_gets_its_blocks_in_order(sessions: list[list[int]], spare: int):
    num_blocks = max(map(len, sessions)) + spare
    reads = plan_reads(sessions, num_blocks, 1, NULL, CPU)
    found = by_session(reads, len(sessions), num_blocks)
    for table, got in zip(sessions, found, strict=True):
        behind = NULL if reads.sorting is None else table[0]
        assert got == table + [behind] * (num_blocks - len(table))


@given(tables(), st.integers(0, 3))
def test_a_block_is_multiplied_for_its_owner_and_counted_once(
    sessions: list[list[int]], spare: int
):
    num_blocks = max(map(len, sessions)) + spare
    reads = plan_reads(sessions, num_blocks, 1, NULL, CPU)
    blocks = read(reads)
    assert len(reads.owners) == len(blocks)
    if reads.sorting is None:
        assert reads.owners.tolist() == [s for s in range(len(sessions)) for _ in range(num_blocks)]
        return
    sorting = reads.sorting
    padded = [len(blocks)]
    for session, table in enumerate(sessions):
        first = session * num_blocks
        places = sorting.filled[first : first + num_blocks].tolist()
        assert places[len(table) :] == padded * (num_blocks - len(table))
        for index, place in enumerate(places[: len(table)]):
            assert reads.owners[place] == session
            assert sorting.sources[place] == first + index
    assert sorting.is_padded == any(len(table) < num_blocks for table in sessions)


@given(tables())
def test_one_piece_has_the_blocks_in_their_order(sessions: list[list[int]]):
    reads = plan_reads(sessions[:1], len(sessions[0]), 1, NULL, CPU, must_be_in_one_piece=True)
    assert reads.sorting is None
    assert len(reads.parts(STORAGE)) == 1
    assert read(reads) == sessions[0]


def test_blocks_side_by_side_are_not_copied():
    together = [[7, 9, 4], [5, 6, 8, 10]]
    reads = plan_reads(together, 4, 1, NULL, CPU)
    assert (reads.runs, reads.copied) == ([(4, 11)], None)
    assert [part.data_ptr() for part in reads.parts(STORAGE)] == [STORAGE[4].data_ptr()]


def test_a_shared_block_is_read_where_it_is_once_and_copied_for_others():
    reads = plan_reads([[0, 1, 2, 3], [0, 1, 4, 5]], 4, 1, NULL, CPU)
    assert reads.runs == [(0, 6)]
    assert reads.copied is not None
    assert reads.copied.tolist() == [0, 1]


def test_a_block_of_nobody_between_two_is_read_along_and_left_out():
    reads = plan_reads([[0, 1], [3, 4]], 2, 1, NULL, CPU)
    assert reads.runs == [(0, 5)]
    assert by_session(reads, 2, 2) == [[0, 1], [3, 4]]
    assert reads.sorting is not None
    assert 2 not in reads.sorting.filled.tolist()


def test_short_stretches_are_copied_beside_long_ones():
    reads = plan_reads([[0, 1, 2, 3, 4], [20, 30]], 5, 1, NULL, CPU)
    assert reads.runs == [(0, 5)]
    assert reads.copied is not None
    assert reads.copied.tolist() == [20, 30]


def test_scattered_blocks_are_copied_in_order():
    reads = plan_reads([[3, 9], [30]], 2, 1, NULL, CPU)
    assert (reads.runs, reads.sorting) == ([], None)
    assert read(reads) == [3, 9, 30, NULL]


def test_small_blocks_are_joined_head_by_head():
    """Three blocks of two tokens and two heads; the value says which: block, head, token."""
    storage = torch.tensor(
        [[[[100 * b + 10 * h + t] for t in range(2)] for h in range(2)] for b in range(4)]
    )
    (chunks,) = plan_reads([[2, 0, 1], [0]], 2, 2, 3, CPU).parts(storage)
    assert chunks[..., 0].tolist() == [
        [[200, 201, 0, 1], [210, 211, 10, 11]],
        [[100, 101, 300, 301], [110, 111, 310, 311]],
        [[0, 1, 300, 301], [10, 11, 310, 311]],
        [[300, 301, 300, 301], [310, 311, 310, 311]],
    ]
