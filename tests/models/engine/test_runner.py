from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from models.engine.runner import ModelRunner, SequenceRows
from models.kv.block_pool import OutOfBlocks
from models.layers.linear import can_pack
from tests.cases.cache_walk import fork
from tests.fakes.engines import text_logits, tiny_config
from tests.harness.sync_watch import SyncWatch

VOCAB_SIZE = 512


def _runner(path: str, dtype: str = "float32", **overrides: Any) -> ModelRunner:
    sizes = {"max_model_len": 512, "kv_cache_tokens": 4096, "block_size": 16}
    return ModelRunner(tiny_config(path, dtype=dtype, **(sizes | overrides)))


@pytest.fixture(scope="module")
def float_runner(tiny_target):
    return _runner(tiny_target)


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def runner(request, tiny_target):
    return _runner(tiny_target, request.param)


def _text(length: int, seed: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB_SIZE), k=length)


def _rows(runner, table, start, token_ids, num_logits=None):
    table.resize(start + len(token_ids))
    count = len(token_ids) if num_logits is None else num_logits
    return SequenceRows(table, start, token_ids, count)


def test_logits_are_those_of_transformers(tiny_target, float_runner):
    reference = AutoModelForCausalLM.from_pretrained(tiny_target, dtype=torch.float32)
    texts = [_text(length, seed) for seed, length in enumerate((1, 5, 40, 130))]
    tables = [float_runner.pool.new_table() for _ in texts]
    # Two ragged passes: first a part of each, then the rest, in another order.
    cuts = [0, 3, 17, 64]
    first = [
        _rows(float_runner, table, 0, text[:cut])
        for table, text, cut in zip(tables, texts, cuts, strict=True)
        if cut
    ]
    second = [
        _rows(float_runner, table, cut, text[cut:])
        for table, text, cut in zip(tables, texts, cuts, strict=True)
    ]
    early = list(float_runner.forward(first).split(cuts[1:]))
    late = float_runner.forward(second[::-1]).split([len(s.token_ids) for s in second[::-1]])
    with torch.inference_mode():
        expected = [reference(torch.tensor([text])).logits[0] for text in texts]
    assert early[0].dtype == torch.float32
    for part, cut, whole in zip(early, cuts[1:], expected[1:], strict=True):
        torch.testing.assert_close(part, whole[:cut], rtol=1e-5, atol=5e-5)
    for part, cut, whole in zip(late[::-1], cuts, expected, strict=True):
        torch.testing.assert_close(part, whole[cut:], rtol=1e-5, atol=5e-5)
    for table in tables:
        table.free()
    float_runner.pool.check([])


def test_bfloat16_is_as_close_to_float32_as_transformers_is(tiny_target, float_runner):
    text = _text(100, 3)
    exact = text_logits(float_runner, text)
    ours = text_logits(_runner(tiny_target, "bfloat16"), text)
    reference = AutoModelForCausalLM.from_pretrained(tiny_target, dtype=torch.bfloat16)
    with torch.inference_mode():
        theirs = reference(torch.tensor([text])).logits[0].float()
    assert (ours - exact).pow(2).mean() < 1.25 * (theirs - exact).pow(2).mean()


def test_only_wanted_logits_come_in_order(float_runner):
    texts = [_text(20, 5), _text(7, 6), _text(9, 7)]
    wholes = [text_logits(float_runner, text) for text in texts]
    tables = [float_runner.pool.new_table() for _ in texts]
    wanted = [3, 0, 1]
    batch = [
        _rows(float_runner, table, 0, text, count)
        for table, text, count in zip(tables, texts, wanted, strict=True)
    ]
    logits = float_runner.forward(batch)
    assert torch.equal(logits, torch.cat([wholes[0][-3:], wholes[2][-1:]]))
    none = [SequenceRows(tables[1], 0, texts[1], 0)]
    assert float_runner.forward(none).shape == (0, VOCAB_SIZE)
    for table in tables:
        table.free()


@pytest.mark.parametrize("seed", range(3))
def test_any_history_gives_the_bits_of_a_fresh_run(runner, seed):
    """Random extending, rolling back and freeing of several sessions, in shared passes."""
    if not can_pack(runner.dtype):
        pytest.skip(f"this CPU or torch has no packed kernel for {runner.dtype}")
    choose = random.Random(seed)
    tables = [runner.pool.new_table() for _ in range(3)]
    texts: list[list[int]] = [[] for _ in tables]
    for _ in range(12):
        batch: list[SequenceRows] = []
        members = choose.sample(range(3), choose.randint(1, 3))
        for i in members:
            if choose.random() < 0.15:
                tables[i].free()
                texts[i] = []
            keep = choose.choice([len(texts[i]), choose.randint(0, len(texts[i]))])
            added = _text(choose.choice([1, 1, 2, 6, 9, 33, 80]), choose.randrange(10**6))
            texts[i] = texts[i][:keep] + added
            batch.append(_rows(runner, tables[i], keep, added))
        logits = runner.forward(batch).split([len(rows.token_ids) for rows in batch])
        runner.pool.check(tables)
        for i, rows, part in zip(members, batch, logits, strict=True):
            assert torch.equal(part, text_logits(runner, texts[i])[rows.start :])
            runner.pool.check(tables)
    for table in tables:
        table.free()
    runner.pool.check([])


def test_running_out_of_blocks_leaves_sessions_intact(tiny_target):
    runner = _runner(tiny_target, kv_cache_tokens=64, max_model_len=64)
    table, other = runner.pool.new_table(), runner.pool.new_table()
    text = _text(40, 1)
    runner.forward([_rows(runner, table, 0, text[:33])])
    with pytest.raises(OutOfBlocks):
        other.resize(32)
    runner.pool.check([table, other])
    logits = runner.forward([_rows(runner, table, 33, text[33:])])
    table.free()
    assert torch.equal(logits, text_logits(runner, text)[33:])


def _fill_with_nan(runner: ModelRunner) -> None:
    for layer in runner.backend.storage.blocks:
        for part in layer:
            part[: runner.pool.num_blocks] = float("nan")


def test_nothing_that_former_owners_left_is_read(tiny_target):
    """Chunks of prompts whose blocks are all reserved already, beside a longer session."""
    runner = _runner(tiny_target, kv_cache_tokens=512)
    texts = [_text(length, seed) for seed, length in enumerate((9, 60, 150))]
    wholes = [text_logits(runner, text) for text in texts]
    _fill_with_nan(runner)
    tables = [runner.pool.new_table() for _ in texts]
    for table, text in zip(tables, texts, strict=True):
        table.resize(len(text))
    starts = [0, 0, 0]
    for chunk in (5, 1, 3, 13, 40, 150):
        batch = [
            SequenceRows(table, start, part, len(part))
            for table, start, text in zip(tables, starts, texts, strict=True)
            if (part := text[start : start + chunk])
        ]
        logits = runner.forward(batch).split([len(rows.token_ids) for rows in batch])
        for rows, own in zip(batch, logits, strict=True):
            i = tables.index(rows.table)
            starts[i] += len(rows.token_ids)
            assert torch.isfinite(own).all()
            torch.testing.assert_close(own, wholes[i][rows.start : starts[i]])
    assert starts == [9, 60, 150]


@pytest.mark.parametrize("block_size", [16, 64], ids=["copied blocks", "blocks in place"])
def test_the_host_does_not_wait_within_a_pass(tiny_target, block_size):
    """A prompt of several tiles, and rounds of sessions of several lengths with mixed blocks."""
    runner = _runner(tiny_target, block_size=block_size, enable_prefix_caching=False)
    tables = [runner.pool.new_table() for _ in range(3)]
    for length in range(64, 400, 64):
        for table, share in zip(tables, (1.0, 0.7), strict=False):
            table.resize(int(share * length))
    rows = [(0, 319, 1), (1, 220, 3), (2, 0, 90)]
    batch = [_rows(runner, tables[i], start, _text(count, i)) for i, start, count in rows]
    with SyncWatch() as watch:
        runner.forward(batch)
    assert watch.waits == []


def test_a_shared_block_is_not_written(tiny_target):
    runner = _runner(tiny_target, kv_cache_tokens=128, max_model_len=64)
    text = _text(40, 1)
    table = runner.pool.new_table()
    whole = runner.forward([_rows(runner, table, 0, text)])
    forked = fork(runner.pool, table, 40)
    forked.resize(40)
    for writer, start in ((table, 31), (forked, 16)):
        with pytest.raises(ValueError, match="would write a shared block"):
            runner.forward([SequenceRows(writer, start, [1, 2, 3], 0)])
    rest = runner.forward([SequenceRows(forked, 32, text[32:], 8)])
    torch.testing.assert_close(rest, whole[32:])
    runner.pool.check([table, forked])


def test_a_copied_block_is_that_of_before_the_pass(tiny_target):
    """Also where its owner writes it in the same pass, and where it is a target itself."""
    runner = _runner(tiny_target, kv_cache_tokens=256, max_model_len=64)
    text, other = _text(40, 1), _text(40, 2)
    table, stranger = runner.pool.new_table(), runner.pool.new_table()
    whole = runner.forward([_rows(runner, table, 0, text)]).clone()
    runner.forward([_rows(runner, stranger, 0, other)])
    copied = table.block_ids[2]
    forks = [runner.pool.new_table() for _ in range(2)]
    for forked in forks:
        forked.adopt(0, table.block_ids[:2])
        forked.resize(40)
    table.exchange(2, stranger.block_ids[2])  # the copied block is free, and handed out again
    table.resize(32)
    table.resize(40)
    assert table.block_ids[2] == copied
    rows = [SequenceRows(forked, 36, text[36:], 4, copied) for forked in forks]
    logits = runner.forward([SequenceRows(table, 32, other[32:], 1), *rows])
    for part in (logits[1:5], logits[5:]):
        torch.testing.assert_close(part, whole[36:])


@pytest.mark.parametrize(
    ("start", "num_rows", "num_logits", "message"),
    [
        (0, 0, 0, "a pass takes 1 to 32 rows, got 0"),
        (0, 33, 0, "a pass takes 1 to 32 rows, got 33"),
        (30, 11, 0, "11 rows from position 30 do not fit in 40 tokens"),
        (-1, 2, 0, "2 rows from position -1 do not fit"),
        (0, 2, 3, "3 logits wanted of 2 rows"),
    ],
)
def test_impossible_passes_are_refused(tiny_target, start, num_rows, num_logits, message):
    runner = _runner(tiny_target, max_num_batched_tokens=32)
    table = runner.pool.new_table()
    table.resize(40)
    with pytest.raises(ValueError, match=message):
        runner.forward([SequenceRows(table, start, [1] * num_rows, num_logits)])
