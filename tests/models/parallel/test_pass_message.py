from __future__ import annotations

from collections.abc import Sequence

import msgspec
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
    received,
    sent,
)

BLOCK_SIZE = 4


@st.composite
def sequences(draw: st.DrawFn) -> list[SequenceRows]:
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
    return rows


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


@given(sequences())
def test_followers_get_what_the_pass_needs(rows: list[SequenceRows]) -> None:
    read = decode(encode(Pass(sent(rows, BLOCK_SIZE))))
    assert isinstance(read, Pass)
    check_rows(received(read.rows), rows)


@given(sequences(), st.integers(0, 8192))
def test_steps_of_drafting_say_what_states_follow(rows: list[SequenceRows], width: int) -> None:
    read = decode(encode(DraftPass(sent(rows, BLOCK_SIZE), width)))
    assert isinstance(read, DraftPass)
    check_rows(received(read.rows), rows)
    assert read.shape == (sum(len(each.token_ids) for each in rows), width)


@pytest.mark.parametrize(
    "message", [Idle(), Stop(), HeadPass((3, 4, 4096)), ClearKeys([7, 0, 199]), ClearKeys([])]
)
def test_all_else_survives(message: PassMessage) -> None:
    assert decode(encode(message)) == message


WHOLE = encode(ClearKeys([7]))


@pytest.mark.parametrize(
    "content",
    [b"", msgspec.msgpack.encode(["Other"]), WHOLE[:-1], WHOLE + b"\0"],
    ids=["empty", "kind", "cut", "more"],
)
def test_broken_messages_are_refused(content: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        decode(content)
