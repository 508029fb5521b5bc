from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.kv.block_pool import BlockPool
from models.kv.rows import SequenceRows
from models.parallel.message import (
    ClearKeys,
    DraftPass,
    HeadPass,
    Idle,
    Pass,
    PassMessage,
    Stop,
    decode,
    encode,
)

BLOCK_SIZE = 4


@st.composite
def passes(draw: st.DrawFn) -> Pass:
    pool = BlockPool(200, BLOCK_SIZE)
    rows = []
    for _ in range(draw(st.integers(1, 4))):
        token_ids = draw(st.lists(st.integers(0, 2**31 - 1), min_size=1, max_size=20))
        start = draw(st.integers(0, 60))
        table = pool.new_table()
        table.resize(start + len(token_ids) + draw(st.integers(0, 9)))
        num_logits = draw(st.integers(0, len(token_ids)))
        copied = draw(st.none() | st.integers(0, 199))
        shared = tuple(draw(st.lists(st.integers(0, 99), max_size=3)))
        adapter = draw(st.integers(0, 3))
        rows.append(SequenceRows(table, start, token_ids, num_logits, copied, shared, adapter))
    return Pass(rows)


def check_rows(read: Sequence[SequenceRows], sent: Sequence[SequenceRows]) -> None:
    for one, got in zip(sent, read, strict=True):
        assert (got.start, got.token_ids, got.num_logits) == (
            one.start,
            one.token_ids,
            one.num_logits,
        )
        assert (got.copied_block, got.shared_rows) == (one.copied_block, one.shared_rows)
        assert got.adapter == one.adapter
        stop = one.start + len(one.token_ids)
        assert got.table.num_tokens == stop
        assert got.table.block_ids == one.table.block_ids[: -(-stop // BLOCK_SIZE)]


@given(passes())
def test_followers_get_what_the_pass_needs(message: Pass) -> None:
    read = decode(encode(message, BLOCK_SIZE))
    assert isinstance(read, Pass)
    check_rows(read.sequences, message.sequences)


@given(passes(), st.integers(0, 8192))
def test_steps_of_drafting_say_what_states_follow(message: Pass, width: int) -> None:
    read = decode(encode(DraftPass(message.sequences, width), BLOCK_SIZE))
    assert isinstance(read, DraftPass)
    check_rows(read.sequences, message.sequences)
    assert read.shape == (sum(len(each.token_ids) for each in message.sequences), width)


@pytest.mark.parametrize(
    "message", [Idle(), Stop(), HeadPass((3, 4, 4096)), ClearKeys([7, 0, 199]), ClearKeys([])]
)
def test_all_else_survives(message: PassMessage) -> None:
    assert decode(encode(message, BLOCK_SIZE)) == message


@pytest.mark.parametrize(
    ("ints", "reason"),
    [
        ([], "ends within its 0 integers"),
        ([9], "unknown kind of pass message: 9"),
        ([1, 1, 0, 1, 2, 1, 5], "ends within its 7 integers"),
        ([2, 0, 0], "2 of 3 integers after the end"),
    ],
    ids=["empty", "kind", "cut", "more"],
)
def test_broken_messages_are_refused(ints: list[int], reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        decode(ints)
