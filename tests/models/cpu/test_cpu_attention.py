"""Attention by the compiled kernel: what is written out, and a row's bits whatever is beside it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from models.attention.features import AttentionFeatures
from models.cpu.batch import CpuPass
from models.cpu.ops import task_rows
from models.kv.rows import SequenceRows
from tests.cases.attention import (
    DTYPES,
    FEATURES,
    HEAD_DIM,
    HEADS,
    KEY_HEADS,
    PLAIN,
    SINKS,
    LaneBench,
    Text,
    each_feature,
)

pytestmark = pytest.mark.matrix


@each_feature
def test_bfloat16_is_rounded_at_the_end_only(features: AttentionFeatures) -> None:
    bench = LaneBench(torch.bfloat16)
    text = Text(200, 0, torch.bfloat16)
    (out,) = bench.run(bench.whole([text]), features)
    expected = text.reference(features).to(torch.bfloat16)
    # A last place apart where float32 and float64 are on two sides of the middle.
    torch.testing.assert_close(out, expected, rtol=2**-7, atol=1e-6)
    assert (out != expected).float().mean() < 0.01


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [1, 16, 64, 65, 200, 520])
@pytest.mark.parametrize("features", [PLAIN, FEATURES["all"]], ids=["plain", "all"])
def test_threads_change_no_bit(
    dtype: torch.dtype, length: int, features: AttentionFeatures
) -> None:
    text = Text(length, 0, dtype)
    benches = [LaneBench(dtype, num_threads=number) for number in (1, 2)]
    (one,), (two,) = (bench.run(bench.whole([text]), features) for bench in benches)
    assert torch.equal(one, two)


@pytest.mark.parametrize("size", [1e-3, 30.0, 3e4])
def test_scores_of_any_size(size: float) -> None:
    bench = LaneBench(torch.float32)
    text = Text(150, 4, torch.float32)
    text.parts[0] *= size
    sinks = replace(PLAIN, sinks=size * SINKS)
    for features in (PLAIN, replace(PLAIN, softcap=30.0), sinks):
        (out,) = bench.run(bench.whole([text]), features)
        # Rounding of a score of 1e5 moves its weight by a hundredth.
        tolerance = 1e-5 + 1e-6 * size
        expected = text.reference(features)
        torch.testing.assert_close(out.double(), expected, rtol=1e-4, atol=tolerance)


def test_what_a_row_does_not_see_is_not_read() -> None:
    """Keys of a window's past and of the future may be anything finite."""
    features = replace(PLAIN, window=20)
    bench = LaneBench(torch.float32)
    text = Text(100, 0, torch.float32)
    (expected,) = bench.run(bench.whole([text]), features)
    text.parts[1][:, :60] = 1e30
    table = bench.pool.new_table()
    bench.run([(text, table, 0, 100)], features)
    (late,) = bench.run([(text, table, 80, 81)], features)
    assert torch.equal(late[0], expected[80])


@pytest.mark.parametrize("part", [0, 1, 2], ids=["query", "key", "value"])
def test_what_is_not_a_number_shows_and_stays_with_its_session(part: int) -> None:
    bench = LaneBench(torch.float32)
    good, bad = Text(40, 0, torch.float32), Text(40, 1, torch.float32)
    (expected,) = bench.run(bench.whole([good]))
    bad.parts[part][:, 35, 3] = float("nan")
    beside, spoilt = bench.run(bench.whole([good, bad]))
    assert torch.equal(beside, expected)
    assert spoilt[35].isnan().any()
    assert spoilt[:32].isfinite().all()  # rows before in the same block get 0 * what it holds


def test_a_layer_may_ask_for_something_else() -> None:
    bench = LaneBench(torch.float32)
    text = Text(60, 0, torch.float32)
    for features in (PLAIN, FEATURES["window"], PLAIN):
        (out,) = bench.run(bench.whole([text]), features)
        torch.testing.assert_close(out.double(), text.reference(features), rtol=1e-5, atol=1e-5)


def plan_of_one(bench: LaneBench, num_rows: int) -> CpuPass:
    table = bench.pool.new_table()
    table.resize(num_rows)
    return bench.plan([SequenceRows(table, 0, [0] * num_rows, 0)])


def test_a_layer_may_have_more_heads_than_the_config_says() -> None:
    """Laguna's layers have; tasks are cut for the config's number."""
    bench = LaneBench(torch.float32, block_size=64)
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
    bench = LaneBench(torch.float32)
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
    made = plan_of_one(LaneBench(torch.float32), 5)
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
