from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.kv.block_pool import BlockPool
from models.kv.rows import SequenceRows
from models.parallel.message import Idle, Pass, Stop, decode, encode

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
        rows.append(SequenceRows(table, start, token_ids, num_logits, copied))
    return Pass(rows)


@given(passes())
def test_followers_get_what_the_pass_needs(message: Pass) -> None:
    read = decode(encode(message, BLOCK_SIZE))
    assert isinstance(read, Pass)
    assert len(read.sequences) == len(message.sequences)
    for sent, got in zip(message.sequences, read.sequences, strict=True):
        assert (got.start, got.token_ids, got.num_logits, got.copied_block) == (
            sent.start,
            sent.token_ids,
            sent.num_logits,
            sent.copied_block,
        )
        stop = sent.start + len(sent.token_ids)
        assert got.table.num_tokens == stop
        assert got.table.block_ids == sent.table.block_ids[: -(-stop // BLOCK_SIZE)]


@pytest.mark.parametrize("message", [Idle(), Stop()])
def test_signals_survive(message: Idle | Stop) -> None:
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
