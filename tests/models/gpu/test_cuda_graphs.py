"""Replaying from fixed buffers: padded rows change no real row and no real session's keys."""

from __future__ import annotations

import random
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from models.engine.runner import ModelRunner, SequenceRows
from models.gpu.buckets import Bucket, BucketPlan
from models.gpu.forward import PagedBackend
from models.gpu.graphs import BucketedPasses, EagerGraphs, GraphsKept, GraphTerms
from models.gpu.indices import PassTensors
from models.kv.block_pool import BlockPool
from models.kv.pages import PageStorage
from tests.cases.attention import kv_sizes
from tests.fakes.engines import make_runner
from tests.harness.kv_memory import own_storage

SIZES: dict[str, Any] = {"max_model_len": 512, "max_num_batched_tokens": 512}


@pytest.fixture(scope="module")
def eager() -> ModelRunner:
    return make_runner(attention="varlen", graphs="off", **SIZES)


@pytest.fixture(scope="module")
def replayed() -> ModelRunner:
    return make_runner(attention="varlen", graphs="eager", **SIZES)


def pages(runner: ModelRunner) -> Tensor:
    return own_storage(runner)._all


class Talk:
    """Sessions that grow by the same ragged passes on a runner."""

    def __init__(self, runner: ModelRunner, seed: int) -> None:
        self.runner = runner
        self.draw = random.Random(seed)
        self.tables = [runner.pool.new_table() for _ in range(5)]
        self.lengths = [0] * 5

    def passes(self) -> list[tuple[Tensor, Bucket | None]]:
        results = [self.run([(i, self.draw.randint(1, 20), 1) for i in range(5)][:3])]
        results.append(self.run([(i, 3, 0) for i in (3, 4)]))
        results.append(self.run([(3, 30, 0), (4, 90, 0), (0, 1, 1), (1, 5, 5)]))
        results.append(self.run([(3, 50, 1)]))
        results.append(self.run([(4, 300, 0), (0, 1, 1)]))
        for _ in range(6):
            members = self.draw.sample(range(5), self.draw.randint(1, 5))
            rows = self.draw.choice([1, 1, 5])
            results.append(self.run([(i, rows, rows) for i in members]))
            if self.draw.random() < 0.5:  # rejected drafts
                self.lengths = [max(1, length - 2) for length in self.lengths]
        return results

    def run(self, needs: list[tuple[int, int, int]]) -> tuple[Tensor, Bucket | None]:
        sequences = []
        for i, count, num_logits in needs:
            ids = [self.draw.randrange(250) for _ in range(count)]
            self.tables[i].resize(self.lengths[i] + count)
            sequences.append(SequenceRows(self.tables[i], self.lengths[i], ids, num_logits))
            self.lengths[i] += count
        assert isinstance(self.runner.backend, PagedBackend)
        graphs = self.runner.backend._graphs
        bucket = graphs.plan.choose([count for _, count, _ in needs]) if graphs else None
        return self.runner.forward(sequences).clone(), bucket

    def free(self) -> None:
        for table in self.tables:
            table.free()


@pytest.mark.parametrize("seed", range(4))
def test_replayed_passes_equal_eager_ones(seed: int, eager: ModelRunner, replayed: ModelRunner):
    talks = [Talk(runner, seed) for runner in (eager, replayed)]
    expected, got = (talk.passes() for talk in talks)
    used = [bucket for _, bucket in got]
    assert used[2:4] == [Bucket(128, 128, 32), Bucket(64, 64, 16)], (
        "chunks of prompts, with streams"
    )
    assert used[4] is None, "a long chunk is not replayed"
    assert used.count(None) == 1
    for (wanted, _), (logits, bucket) in zip(expected, got, strict=True):
        torch.testing.assert_close(logits, wanted, rtol=1e-5, atol=1e-4, msg=str(bucket))
    for talk in talks:
        talk.free()


def test_padding_writes_no_key_of_a_real_session(replayed: ModelRunner):
    table, other = replayed.pool.new_table(), replayed.pool.new_table()
    table.resize(40)
    other.resize(20)
    replayed.forward([SequenceRows(table, 0, [7] * 37, 1), SequenceRows(other, 0, [9] * 20, 1)])
    before = pages(replayed).clone()
    # Three rows go to the bucket of four.
    replayed.forward([SequenceRows(table, 37, [1, 2, 3], 3)])
    block = table.block_ids[37 // 16]
    null = own_storage(replayed).null_block
    changed_blocks = {
        index
        for index in range(null + 1)
        if not torch.equal(pages(replayed)[:, :, index], before[:, :, index])
    }
    assert changed_blocks - {null} == {block}
    same = pages(replayed)[:, :, block, :5] == before[:, :, block, :5]  # slots 32 to 36
    assert bool(same.all())
    table.free()
    other.free()


def test_what_was_in_the_buffers_before_does_not_matter(replayed: ModelRunner):
    table = replayed.pool.new_table()
    table.resize(3)
    rows = [SequenceRows(table, 0, [5, 6, 7], 3)]
    first = replayed.forward(rows).clone()
    tables = [replayed.pool.new_table() for _ in range(12)]
    for each in tables:
        each.resize(9)
    replayed.forward([SequenceRows(each, 0, [8] * 4, 4) for each in tables])
    torch.testing.assert_close(replayed.forward(rows), first)
    for each in (*tables, table):
        each.free()


def test_ids_may_come_from_the_device(eager: ModelRunner, replayed: ModelRunner):
    for runner in (eager, replayed):
        table = runner.pool.new_table()
        table.resize(4)
        known = runner.forward([SequenceRows(table, 0, [4, 9, 30], 3)]).clone()
        drawn = runner.forward([SequenceRows(table, 0, [0, 0, 0], 3)], torch.tensor([4, 9, 30]))
        torch.testing.assert_close(drawn, known)
        table.free()


class MeteredGraphs(EagerGraphs):
    """A pool as torch has it: a graph of n rows takes n bytes, which later ones of fewer reuse.

    It is free again when none of its graphs is left. Warm-ups leave as much outside of it.
    """

    def __init__(self, log: list[int]) -> None:
        self.log = log
        self.live: weakref.WeakSet[Any] = weakref.WeakSet()
        self.pool: list[int] = []
        self.reserve = 0

    def capture(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        def replay() -> Tensor:
            return compute()

        num_rows = len(replay())
        self.log.append(num_rows)
        self.live.add(replay)
        self.reserve = max(self.reserve, num_rows)
        if all(num_rows > block for block in self.pool):
            self.pool.append(num_rows)
        return replay

    def used_bytes(self) -> int:
        return 1000 + sum(self.pool) + self.reserve

    def release(self) -> None:
        self.reserve = 0
        if not self.live:
            self.pool.clear()


def ids_as_logits(tensors: PassTensors, session_rows: int) -> Tensor:
    return tensors.token_ids[:, None].float()


def passes_with(
    backend: EagerGraphs,
    max_rows: int = 8,
    compute: Callable[[PassTensors, int], Tensor] = ids_as_logits,
    **terms: Any,
) -> BucketedPasses:
    """Capture passes of up to so many rows; `terms` are fields of `GraphTerms`."""
    return BucketedPasses(
        backend,
        BucketPlan(max_rows, (1,)),
        compute,
        PageStorage(kv_sizes(torch.float32, num_blocks=9, block_size=4)),
        table_width=2,
        terms=GraphTerms(**terms),
    )


def run_rows(passes: BucketedPasses, *token_ids: int) -> Tensor:
    """Run a pass of sessions with one row each."""
    pool, sequences = BlockPool(len(token_ids), 4), []
    for token_id in token_ids:
        table = pool.new_table()
        table.resize(1)
        sequences.append(SequenceRows(table, 0, [token_id], 1))
    return passes.run(sequences, Bucket(len(token_ids), 1, len(token_ids)))


def test_where_memory_runs_out_the_largest_buckets_are_given_up():
    captured: list[int] = []
    passes = passes_with(MeteredGraphs(captured), 16, max_bytes=14)
    assert captured == [16, 8, 4, 2, 1]
    assert [bucket.num_rows for bucket in passes.plan.buckets] == [1, 2, 4, 8]
    assert passes.kept == GraphsKept(num_graphs=4, num_bytes=8)


def test_where_there_is_no_memory_no_buffer_is_left():
    passes = passes_with(MeteredGraphs([]), 16, max_bytes=0)
    assert passes.kept == GraphsKept(num_graphs=0, num_bytes=0)
    assert passes.plan.choose([1]) is None


def test_logits_are_kept_as_passes_give_them_and_returned_in_float32():
    captured: list[torch.dtype] = []

    class Typed(EagerGraphs):
        def capture(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
            captured.append(compute().dtype)
            return compute

    def halved(tensors: PassTensors, session_rows: int) -> Tensor:
        return ids_as_logits(tensors, session_rows).bfloat16()

    passes = passes_with(Typed(), 2, halved)
    assert set(captured) == {torch.bfloat16}
    got = run_rows(passes, 5)
    assert (got.dtype, got.tolist()) == (torch.float32, [[5.0]])


class FailingGraphs(EagerGraphs):
    """Cannot capture graphs of more than so many rows."""

    def __init__(self, most: int) -> None:
        self._most = most

    def capture(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        if len(compute()) > self._most:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return super().capture(compute)


def test_a_capture_that_fails_means_eager_passes(caplog: pytest.LogCaptureFixture):
    passes = passes_with(FailingGraphs(2))
    assert [bucket.num_rows for bucket in passes.plan.buckets] == [1, 2]
    assert "out of memory" in caplog.text
    assert "no graphs of more than 2 rows: eager passes" in caplog.text
    assert passes_with(FailingGraphs(0)).plan.choose([1]) is None


def test_ranks_keep_the_graphs_that_all_of_them_have():
    asked: list[bool] = []

    def agree(is_so: bool) -> bool:
        asked.append(is_so)
        return is_so and len(asked) != 1  # another rank could not capture the first

    passes = passes_with(EagerGraphs(), agree=agree)
    assert asked == [True] * 4
    assert [bucket.num_rows for bucket in passes.plan.buckets] == [1, 2, 4]


def test_all_graphs_write_their_logits_into_one_buffer():
    passes = passes_with(EagerGraphs(), 2)
    first = run_rows(passes, 5)
    assert first.tolist() == [[5.0]]
    for token_ids in ((6,), (7, 8)):  # by the same graph, and by another
        run_rows(passes, *token_ids)
        assert first.tolist() == [[token_ids[0]]]
