"""Attention on pages: where keys lie, sinks by the log-sum, and what the reference refuses.

`tests/models/attention/test_each_way.py` compares it with attention written out.
"""

from __future__ import annotations

import pytest
import torch

from models.gpu.kernel import add_sinks
from models.gpu.reference import reference_varlen_attn
from models.kv.rows import SequenceRows
from tests.cases.attention import HEAD_DIM, HEADS, PLAIN, PagedBench, Text


def test_a_wrong_block_table_is_noticed():
    bench = PagedBench(torch.float32, block_size=8)
    rows = bench.whole([Text(22, 0, torch.float32), Text(4, 1, torch.float32)])
    bench.run(rows)
    sequences = [SequenceRows(table, stop - 2, [0, 0], 0) for _, table, _, stop in rows]
    made = bench.plan(sequences)
    query = torch.randn(4, HEADS, HEAD_DIM, generator=torch.Generator().manual_seed(0))
    right = made.attend(0, query, PLAIN)
    table = made.tensors.block_table
    table[0, :2] = table[0, :2].flip(0).clone()
    torch.testing.assert_close(made.attend(0, query, PLAIN)[:2], right[:2])  # order of keys
    table[0, 0] = table[1, 0]
    assert not torch.allclose(made.attend(0, query, PLAIN)[:2], right[:2], atol=1e-2)


def test_pages_hold_the_keys_of_their_blocks_alone():
    bench = PagedBench(torch.float32, block_size=8)
    rows = bench.whole([Text(13, 3, torch.float32)])
    bench.run(rows)
    keys, values = bench.storage.blocks[0]
    blocks = rows[0][1].block_ids
    filled = [block for block in range(len(keys)) if bool(keys[block].any())]
    assert filled == sorted(blocks)
    bench.storage.clear_blocks(blocks[:1])
    assert not bool(keys[blocks[0]].any())
    assert not bool(values[blocks[0]].any())
    assert bool(keys[blocks[1]].any())


def test_sinks_by_the_log_sum_are_a_key_without_a_value():
    generator = torch.Generator().manual_seed(0)
    scores = 4 * torch.randn(HEADS, 5, 12, generator=generator)
    values = torch.randn(HEADS, 12, HEAD_DIM, generator=generator)
    sinks = torch.tensor([-30.0, 0.0, 3.0, 40.0])
    out = (torch.softmax(scores, -1) @ values).transpose(0, 1)
    with_sink = torch.cat([sinks[:, None, None].expand(-1, 5, 1), scores], dim=-1)
    expected = (torch.softmax(with_sink, -1)[..., 1:] @ values).transpose(0, 1)
    got = add_sinks(out, scores.logsumexp(-1), sinks)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_the_reference_refuses_what_it_cannot_do():
    query, keys = torch.zeros(1, 3, 4), torch.zeros(2, 8, 2, 4)
    counts = torch.tensor([0, 1], dtype=torch.int32)
    arguments = {"seqused_k": counts[1:], "block_table": torch.zeros(1, 1, dtype=torch.int32)}
    with pytest.raises(ValueError, match="3 query heads on 2 key heads"):
        reference_varlen_attn(query, keys, keys, counts, None, 1, 1, enable_gqa=True, **arguments)
    with pytest.raises(ValueError, match="needs block_table and seqused_k"):
        reference_varlen_attn(query[:, :2], keys, keys, counts, None, 1, 1)
