"""The index arrays of a pass say where each row's key is, and padding touches nothing real."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
import torch

from models.gpu.indices import (
    PassShape,
    PassTensors,
    exact_shape,
    index_pass,
    padded_shape,
    upload,
)
from models.kv.block_pool import BlockPool
from models.kv.rows import SequenceRows

BLOCK_SIZE = 4
NULL_BLOCK = 99


def rows(block_ids: list[int], start: int, token_ids: list[int]) -> SequenceRows:
    table = BlockPool(1, BLOCK_SIZE).new_table()
    table.block_ids = block_ids
    return SequenceRows(table, start, token_ids, len(token_ids))


def tensors(sequences: list[SequenceRows], shape: PassShape) -> PassTensors:
    arrays = index_pass(sequences, shape, BLOCK_SIZE, NULL_BLOCK)
    return upload(arrays, shape, torch.device("cpu"))


def test_a_pass_of_two_sessions():
    sequences = [rows([7, 2, 5], 6, [11, 12, 13]), rows([3], 0, [21])]
    cut = tensors(sequences, exact_shape(sequences, BLOCK_SIZE))
    assert cut.token_ids.tolist() == [11, 12, 13, 21]
    assert cut.positions.tolist() == [6, 7, 8, 0]
    assert cut.row_slots.tolist() == [2 * 4 + 2, 2 * 4 + 3, 5 * 4, 3 * 4]
    assert cut.cumulative_rows.tolist() == [0, 3, 4]
    assert cut.cumulative_keys.tolist() == [0, 9, 10]
    assert cut.num_keys.tolist() == [9, 1]
    assert cut.block_table.tolist() == [[7, 2, 5], [3, NULL_BLOCK, NULL_BLOCK]]
    kinds = [view.dtype for view in cut]
    assert kinds == [torch.int64] * 3 + [torch.int32] * 4


def test_padded_rows_are_sessions_of_their_own_in_the_null_block():
    sequences = [rows([7, 2], 5, [11, 12])]
    cut = tensors(sequences, padded_shape(5, 3))
    assert cut.row_slots.tolist()[2:] == [NULL_BLOCK * BLOCK_SIZE] * 3
    assert cut.positions.tolist()[2:] == [0, 0, 0]
    assert cut.cumulative_rows.tolist() == [0, 2, 3, 4, 5, 5]
    assert cut.num_keys.tolist() == [7, 1, 1, 1, 0]
    assert set(cut.block_table[1:].flatten().tolist()) == {NULL_BLOCK}


def test_padded_rows_share_a_session_where_it_may_have_them():
    """Its keys are theirs, in the null block, which has four slots."""
    sequences = [rows([7, 2], 5, [11, 12])]
    cut = tensors(sequences, PassShape(9, 4, 3, session_rows=6))
    assert cut.positions.tolist()[2:] == [0, 1, 2, 3, 4, 5, 0]
    slots = [slot - NULL_BLOCK * BLOCK_SIZE for slot in cut.row_slots.tolist()[2:]]
    assert slots == [0, 1, 2, 3, 0, 1, 0]
    assert cut.cumulative_rows.tolist() == [0, 2, 8, 9, 9]
    assert cut.num_keys.tolist() == [7, 6, 1, 0]
    assert set(cut.block_table[1:].flatten().tolist()) == {NULL_BLOCK}


@pytest.mark.parametrize("session_rows", [1, 5])
@pytest.mark.parametrize("seed", range(5))
def test_padding_leaves_what_is_real_as_it_was(seed: int, session_rows: int):
    draw = random.Random(seed)
    sequences = []
    for session in range(draw.randint(1, 6)):
        start, count = draw.randint(0, 20), draw.randint(1, 5)
        blocks = [session * 10 + i for i in range(-(-(start + count) // BLOCK_SIZE))]
        sequences.append(rows(blocks, start, draw.choices(range(50), k=count)))
    exact = exact_shape(sequences, BLOCK_SIZE)
    plain = tensors(sequences, exact)
    num_rows = exact.num_rows + draw.randint(0, 9)
    padded = tensors(sequences, PassShape(num_rows, num_rows, 8, session_rows))
    count, sessions = exact.num_rows, exact.num_sessions
    for name in ("token_ids", "positions", "row_slots"):
        assert torch.equal(getattr(padded, name)[:count], getattr(plain, name))
    for name in ("cumulative_rows", "cumulative_keys"):
        assert torch.equal(getattr(padded, name)[: sessions + 1], getattr(plain, name))
    assert torch.equal(padded.num_keys[:sessions], plain.num_keys)
    assert torch.equal(padded.block_table[:sessions, : exact.table_width], plain.block_table)
    assert int(padded.cumulative_rows[-1]) == len(padded.token_ids)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        (PassShape(2, 4, 4), "3 rows of 1 sessions do not fit in 2 rows"),
        (PassShape(5, 2, 4), "3 rows of 1 sessions do not fit in 5 rows of 2 sessions"),
        (PassShape(9, 2, 4, session_rows=5), "do not fit in 9 rows of 2 sessions"),
        (PassShape(3, 1, 1), "3 blocks do not fit in a table of 1"),
        (PassShape(20, 2, 3, session_rows=17), "5 blocks do not fit in a table of 3"),
    ],
    ids=["rows", "sessions to pad with", "larger ones", "blocks", "blocks of padding"],
)
def test_a_shape_that_is_too_small_is_refused(shape: PassShape, message: str):
    with pytest.raises(ValueError, match=message):
        index_pass([rows([7, 2, 5], 6, [11, 12, 13])], shape, BLOCK_SIZE, NULL_BLOCK)


def test_an_empty_pass_is_all_padding():
    longs, ints = index_pass([], padded_shape(2, 1), BLOCK_SIZE, NULL_BLOCK)
    assert longs.dtype == np.int64
    assert ints.tolist() == [0, 1, 2, 0, 1, 2, 1, 1, NULL_BLOCK, NULL_BLOCK]


def num_calls(num_sessions: int) -> int:
    """Functions that are called to index a pass of sessions with five rows each."""
    sequences = [rows([7 * n, 7 * n + 1, 5], 4 + n % 3, [1] * 5) for n in range(num_sessions)]
    calls: list[str] = []
    sys.setprofile(lambda frame, event, function: calls.append(event))
    try:
        index_pass(sequences, PassShape(5 * num_sessions + 7, num_sessions + 1, 9, 8), 4, 99)
    finally:
        sys.setprofile(None)
    return sum(event.endswith("call") for event in calls)


def test_a_session_costs_the_host_few_calls():
    """The host waits for the GPU while it indexes: arrays are made for all sessions together."""
    assert num_calls(40) - num_calls(8) <= 5 * 32


@pytest.mark.parametrize("seed", range(20))
def test_each_row_is_where_its_position_is_in_its_table(seed: int):
    """Blocks that are only reserved are left out."""
    draw = random.Random(seed)
    sequences = [
        rows(draw.sample(range(98), 12), draw.randint(0, 30), draw.choices(range(50), k=k))
        for k in draw.choices([1, 1, 6, 17], k=draw.randint(1, 9))
    ]
    num_rows = sum(len(each.token_ids) for each in sequences)
    shape = PassShape(num_rows + draw.randint(0, 9), 18, 13, session_rows=draw.choice([1, 4]))
    cut = tensors(sequences, shape)
    expected = [
        (token_id, position, each.table.block_ids[position // 4] * 4 + position % 4)
        for each in sequences
        for position, token_id in enumerate(each.token_ids, each.start)
    ]
    of_rows = torch.stack([cut.token_ids, cut.positions, cut.row_slots], dim=1)
    assert of_rows[:num_rows].tolist() == [list(row) for row in expected]
    ends = [each.start + len(each.token_ids) for each in sequences]
    assert cut.num_keys.tolist()[: len(ends)] == ends
    for each, end, entry in zip(sequences, ends, cut.block_table.tolist(), strict=False):
        width = -(-end // BLOCK_SIZE)
        assert entry == each.table.block_ids[:width] + [NULL_BLOCK] * (13 - width)
