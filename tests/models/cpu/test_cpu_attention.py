"""Attention by the compiled kernel: what is written out, and a row's bits whatever is beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from models.attention.features import AttentionFeatures
from models.cpu.batch import CpuPass, CpuPlanner, LaneStorage
from models.cpu.ops import task_rows
from models.kv.block_pool import BlockPool, BlockTable
from models.kv.rows import SequenceRows
from tests.cases.attention import (
    DTYPES,
    FEATURES,
    HEAD_DIM,
    HEADS,
    KEY_HEADS,
    PLAIN,
    SINKS,
    Text,
    each_feature,
    kv_sizes,
)

pytestmark = pytest.mark.matrix

Rows = tuple[Text, BlockTable, int, int]  # start and stop


class Bench:
    """Storage, pool and one layer, without a model."""

    def __init__(
        self,
        dtype: torch.dtype,
        num_blocks: int = 128,
        block_size: int = 16,
        num_threads: int = 1,
    ) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.storage = LaneStorage(kv_sizes(dtype, num_blocks, block_size), HEADS, num_threads)
        self.plan = CpuPlanner(self.storage, [None])

    def run(self, rows: list[Rows], features: AttentionFeatures = PLAIN) -> list[torch.Tensor]:
        """Store the rows' keys and attend, in one pass; the outputs of each session."""
        sequences = [
            SequenceRows(table, start, [0] * (stop - start), 0) for _, table, start, stop in rows
        ]
        for sequence in sequences:
            sequence.table.resize(sequence.start + len(sequence.token_ids))
        made = self.plan(sequences)
        query, key, value = (
            torch.cat([text.parts[i][:, start:stop] for text, _, start, stop in rows], 1)
            for i in range(3)
        )
        made.store(0, key, value)
        out = made.attend(0, query.transpose(0, 1), features)
        return list(out.split([stop - start for *_, start, stop in rows]))


def whole(bench: Bench, texts: list[Text]) -> list[Rows]:
    return [(text, bench.pool.new_table(), 0, text.parts[0].shape[1]) for text in texts]


@each_feature
@pytest.mark.parametrize("block_size", [16, 48, 64])
@pytest.mark.parametrize("num_threads", [1, 3])
def test_equals_attention_written_out(
    block_size: int, num_threads: int, features: AttentionFeatures
) -> None:
    num_blocks = 1024 // block_size
    bench = Bench(torch.float32, num_blocks, block_size, num_threads)
    texts = [Text(length, seed, torch.float32) for seed, length in enumerate((1, 16, 17, 130))]
    for text, out in zip(texts, bench.run(whole(bench, texts), features), strict=True):
        torch.testing.assert_close(out.double(), text.reference(features), rtol=1e-5, atol=1e-5)


@each_feature
def test_bfloat16_is_rounded_at_the_end_only(features: AttentionFeatures) -> None:
    bench = Bench(torch.bfloat16)
    text = Text(200, 0, torch.bfloat16)
    (out,) = bench.run(whole(bench, [text]), features)
    expected = text.reference(features).to(torch.bfloat16)
    # A last place apart where float32 and float64 are on two sides of the middle.
    torch.testing.assert_close(out, expected, rtol=2**-7, atol=1e-6)
    assert (out != expected).float().mean() < 0.01


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [1, 16, 64, 65, 200, 520])
@pytest.mark.parametrize("features", [PLAIN, FEATURES["all"]], ids=["plain", "all"])
def test_same_bits_for_rows_chunks_whole_and_strangers(
    dtype: torch.dtype, length: int, features: AttentionFeatures
) -> None:
    bench = Bench(dtype)
    parallel = Bench(dtype, num_threads=2)
    text, long, short = Text(length, 0, dtype), Text(700, 1, dtype), Text(3, 2, dtype)
    table, long_table, short_table = (bench.pool.new_table() for _ in range(3))
    (expected,) = bench.run([(text, table, 0, length)], features)
    assert torch.equal(parallel.run(whole(parallel, [text]), features)[0], expected)
    bench.run([(long, long_table, 0, 699), (short, short_table, 0, 2)], features)
    for count in (1, 2, 3, 6, 9, 37, 128):
        for start in {max(0, length - count), max(0, length - count - 70)}:
            stop = min(length, start + count)
            (alone,) = bench.run([(text, table, start, stop)], features)
            assert torch.equal(alone, expected[start:stop]), (count, start)
            among: list[Rows] = [
                (long, long_table, 699, 700),
                (text, table, start, stop),
                (short, short_table, 2, 3),
            ]
            assert torch.equal(bench.run(among, features)[1], expected[start:stop]), (count, start)


@pytest.mark.parametrize("size", [1e-3, 30.0, 3e4])
def test_scores_of_any_size(size: float) -> None:
    bench = Bench(torch.float32)
    text = Text(150, 4, torch.float32)
    text.parts[0] *= size
    sinks = replace(PLAIN, sinks=size * SINKS)
    for features in (PLAIN, replace(PLAIN, softcap=30.0), sinks):
        (out,) = bench.run(whole(bench, [text]), features)
        # Rounding of a score of 1e5 moves its weight by a hundredth.
        tolerance = 1e-5 + 1e-6 * size
        expected = text.reference(features)
        torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=tolerance)


def test_what_a_row_does_not_see_is_not_read() -> None:
    """Keys of a window's past and of the future may be anything finite."""
    features = replace(PLAIN, window=20)
    bench = Bench(torch.float32)
    text = Text(100, 0, torch.float32)
    (expected,) = bench.run(whole(bench, [text]), features)
    text.parts[1][:, :60] = 1e30
    table = bench.pool.new_table()
    bench.run([(text, table, 0, 100)], features)
    (late,) = bench.run([(text, table, 80, 81)], features)
    assert torch.equal(late[0], expected[80])


@each_feature
@pytest.mark.parametrize("block_size", [16, 64])
def test_what_a_block_held_before_does_not_matter(
    block_size: int, features: AttentionFeatures
) -> None:
    bench = Bench(torch.float32, 1024 // block_size, block_size)
    texts = [Text(length, seed, torch.float32) for seed, length in enumerate((20, 64, 131))]
    expected = bench.run(whole(bench, texts), features)
    spoilt = Bench(torch.float32, 1024 // block_size, block_size)
    for part in spoilt.storage.blocks[0]:
        part.fill_(float("nan"))
    rows = whole(spoilt, texts)
    assert all(map(torch.equal, spoilt.run(rows, features), expected))
    after = [(text, table, stop - 3, stop - 1) for text, table, _, stop in rows]
    again = spoilt.run(after, features)
    for out, wanted in zip(again, expected, strict=True):
        assert torch.equal(out, wanted[-3:-1])


@pytest.mark.parametrize("part", [0, 1, 2], ids=["query", "key", "value"])
def test_what_is_not_a_number_shows_and_stays_with_its_session(part: int) -> None:
    bench = Bench(torch.float32)
    good, bad = Text(40, 0, torch.float32), Text(40, 1, torch.float32)
    (expected,) = bench.run(whole(bench, [good]))
    bad.parts[part][:, 35, 3] = float("nan")
    beside, spoilt = bench.run(whole(bench, [good, bad]))
    assert torch.equal(beside, expected)
    assert spoilt[35].isnan().any()
    assert spoilt[:32].isfinite().all()  # rows before in the same block get 0 * what it holds


def test_a_layer_may_ask_for_something_else() -> None:
    bench = Bench(torch.float32)
    text = Text(60, 0, torch.float32)
    for features in (PLAIN, FEATURES["window"], PLAIN):
        (out,) = bench.run(whole(bench, [text]), features)
        torch.testing.assert_close(out.double(), text.reference(features), rtol=1e-5, atol=1e-5)


def plan_of_one(bench: Bench, num_rows: int) -> CpuPass:
    table = bench.pool.new_table()
    table.resize(num_rows)
    return bench.plan([SequenceRows(table, 0, [0] * num_rows, 0)])


def test_a_layer_may_have_more_heads_than_the_config_says() -> None:
    """Laguna's layers have; tasks are cut for the config's number."""
    bench = Bench(torch.float32, block_size=64)
    made = plan_of_one(bench, 100)
    parts = [torch.randn(KEY_HEADS, 100, HEAD_DIM) for _ in range(2)]
    made.store(0, *parts)
    for num_heads in (2, 4, 16):
        query = torch.randn(100, num_heads, HEAD_DIM)
        out = made.attend(0, query, PLAIN)
        expected = torch.nn.functional.scaled_dot_product_attention(
            query.transpose(0, 1), *parts, is_causal=True, enable_gqa=True
        )
        torch.testing.assert_close(out, expected.transpose(0, 1), rtol=1e-5, atol=1e-5)


def test_strides_do_not_matter() -> None:
    bench = Bench(torch.float32)
    made = plan_of_one(bench, 30)
    made.store(0, *(torch.randn(KEY_HEADS, 30, HEAD_DIM) for _ in range(2)))
    query = torch.randn(30, HEADS, HEAD_DIM)
    expected = made.attend(0, query, PLAIN)
    for order in ([1, 0, 2], [0, 2, 1], [2, 1, 0]):
        back = [order.index(i) for i in range(3)]
        odd = query.permute(order).contiguous().permute(back)
        assert torch.equal(made.attend(0, odd, PLAIN), expected)


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"query": torch.zeros(5, HEADS, HEAD_DIM).bfloat16()}, "queries are .*bfloat16"),
        ({"query": torch.zeros(5, HEADS, 32)}, r"queries are \(5, 4, 32\).*\(5, 4, 16\)"),
        ({"query": torch.zeros(4, HEADS, HEAD_DIM)}, r"queries are \(4, 4, 16\)"),
        ({"query": torch.zeros(5, 3, HEAD_DIM)}, "3 query heads with 2 key heads"),
        ({"features": replace(PLAIN, sinks=torch.zeros(3))}, "4 query heads .* 3 sinks"),
        ({"key": torch.zeros(KEY_HEADS, 5, HEAD_DIM).bfloat16()}, "keys are .*bfloat16"),
        ({"value": torch.zeros(KEY_HEADS, 5, HEAD_DIM).double()}, "values are .*float64"),
        ({"value": torch.zeros(KEY_HEADS, 6, HEAD_DIM)}, r"values are \(2, 6, 16\)"),
    ],
)
def test_what_does_not_fit_the_storage_is_refused(changes: dict[str, Any], complaint: str) -> None:
    made = plan_of_one(Bench(torch.float32), 5)
    key = torch.zeros(KEY_HEADS, 5, HEAD_DIM)
    query = torch.zeros(5, HEADS, HEAD_DIM)
    given = {"query": query, "key": key, "value": key, "features": PLAIN, **changes}

    def use() -> None:
        made.store(0, given["key"], given["value"])
        made.attend(0, given["query"], given["features"])

    with pytest.raises(ValueError, match=f"{complaint}.*: not served"):
        use()


@pytest.mark.parametrize("num_groups", [1, 3, 64, 71, 200])
def test_a_task_has_at_least_a_row(num_groups: int) -> None:
    rows = task_rows(num_groups)
    assert rows >= 1
    assert rows == 1 or rows * num_groups <= 64
