"""Which passes are padded to which captured size."""

from __future__ import annotations

import random

import pytest

from models.gpu.buckets import MAX_GRAPH_ROWS, PROMPT_ROWS, Bucket, BucketPlan, row_sizes
from models.gpu.indices import PassShape, index_pass
from models.kv.rows import BlockList, SequenceRows


@pytest.mark.parametrize("max_rows", [1, 2, 3, 7, 8, 9, 24, 100, 255, MAX_GRAPH_ROWS, 1000])
def test_sizes_rise_to_the_limit(max_rows: int):
    sizes = row_sizes(max_rows)
    assert sizes == sorted(set(sizes))
    assert sizes[0] == 1
    assert sizes[-1] == max_rows


def test_no_pass_is_padded_by_more_than_a_third_or_7_rows():
    sizes = row_sizes(MAX_GRAPH_ROWS)
    for num_rows in range(1, MAX_GRAPH_ROWS + 1):
        padded = min(size for size in sizes if size >= num_rows)
        assert padded - num_rows <= max(7, num_rows / 3), (num_rows, padded)


def test_there_are_few_enough_to_capture():
    assert len(BucketPlan(MAX_GRAPH_ROWS).buckets) < 80


@pytest.mark.parametrize(
    ("session_rows", "expected"),
    [
        pytest.param([1], Bucket(1, 1, 1), id="one draft step"),
        pytest.param([1, 1, 1], Bucket(4, 1, 4), id="steps of three sessions"),
        pytest.param([5] * 5, Bucket(32, 16, 32), id="verify rounds"),
        pytest.param([2], Bucket(2, 2, 2), id="a draft that catches up"),
        pytest.param([3, 2], Bucket(8, 8, 8), id="the bound is met within small buckets"),
        pytest.param([16], Bucket(16, 16, 16), id="the longest round"),
        pytest.param([17], Bucket(64, 64, 16), id="a chunk of a prompt"),
        pytest.param([17, 1, 5], Bucket(64, 64, 16), id="steps and rounds beside a chunk"),
        pytest.param([100, 1, 5], Bucket(128, 128, 32), id="a longer chunk"),
        pytest.param([129], Bucket(192, 192, 48), id="one row too many"),
        pytest.param(
            [PROMPT_ROWS - 9, 9],
            Bucket(PROMPT_ROWS, PROMPT_ROWS, 64),
            id="the longest pass with a chunk",
        ),
        pytest.param([PROMPT_ROWS - 9, 9, 1], None, id="longer: it hides its launches"),
        pytest.param([9] * 32, Bucket(320, 16, 80), id="many rounds"),
        pytest.param(
            [6] * 32,
            Bucket(192, 16, 48),
            id="kernels launch thread blocks for few sessions where few are",
        ),
        pytest.param([2] * 40, Bucket(80, 16, 80), id="short drafts of many sessions"),
        pytest.param([5] * 16, Bucket(80, 16, 20), id="longer ones of few"),
        pytest.param([1] * 127 + [4], Bucket(160, 16, 160), id="a probe beside many steps"),
        pytest.param([1] * 70 + [100], Bucket(192, 192, 192), id="a chunk beside many steps"),
        pytest.param([1] * 64, Bucket(64, 1, 64), id="a full bucket"),
        pytest.param(
            [1] * MAX_GRAPH_ROWS, Bucket(MAX_GRAPH_ROWS, 1, MAX_GRAPH_ROWS), id="the largest"
        ),
        pytest.param([1] * (MAX_GRAPH_ROWS + 1), None, id="more than any bucket"),
    ],
)
def test_the_smallest_that_fits(session_rows: list[int], expected: Bucket | None):
    assert BucketPlan(MAX_GRAPH_ROWS).choose(session_rows) == expected


def written(bucket: Bucket, session_rows: list[int]) -> bool:
    """Whether a pass of such sessions can be written to the bucket's shape."""
    table = BlockList(list(range(10)), 40)
    sequences = [SequenceRows(table, 0, [1] * count, 1) for count in session_rows]
    shape = PassShape(bucket.num_rows, bucket.num_sessions, 10, bucket.session_rows)
    try:
        index_pass(sequences, shape, 4, null_block=10)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("seed", range(3))
def test_a_bucket_holds_a_pass_where_it_can_be_written(seed: int) -> None:
    draw = random.Random(seed)
    found = set()
    for bucket in BucketPlan(MAX_GRAPH_ROWS, max_len=40).buckets:
        assert written(bucket, []), "captured with nothing but padding"
        assert bucket.session_rows <= 40, "no session is longer"
        for _ in range(3):
            most = draw.randint(1, bucket.session_rows)
            num_sessions = draw.randint(1, max(1, 2 * bucket.num_rows // most))
            session_rows = [draw.randint(1, most) for _ in range(num_sessions)]
            assert bucket.holds(session_rows) == written(bucket, session_rows), session_rows
            found.add(bucket.holds(session_rows))
    assert found == {False, True}


def test_a_plan_is_no_larger_than_a_pass_may_be():
    assert max(BucketPlan(100).buckets) == Bucket(100, 16, 100)
    assert BucketPlan(100).choose([70]) is None
    assert BucketPlan(256, prompt_rows=64).choose([70]) is None


def test_only_captured_buckets_are_chosen():
    plan = BucketPlan(16)
    plan.keep([Bucket(4, 1, 4), Bucket(8, 8, 8)])
    assert plan.choose([1]) == Bucket(4, 1, 4)
    assert plan.choose([1] * 5) == Bucket(8, 8, 8)
    assert plan.choose([1] * 9) is None
    plan.keep([])
    assert plan.choose([1]) is None


@pytest.mark.parametrize(("max_rows", "session_rows"), [(0, (1,)), (4, ()), (4, (0,))])
def test_a_plan_of_nothing_is_refused(max_rows: int, session_rows: tuple[int, ...]):
    with pytest.raises(ValueError, match="no buckets of"):
        BucketPlan(max_rows, session_rows)
