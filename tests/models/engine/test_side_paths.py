"""Rows of a side path of a draft are the bits of the same text computed by itself."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models.engine.runner import ModelRunner, SequenceRows
from models.gpu.forward import PagedBackend
from models.kv.rows import BlockList
from tests.fakes.engines import make_runner, random_prompt
from tests.harness.kv_memory import own_storage

pytestmark = pytest.mark.matrix

MAIN = [11, 12, 13, 14]  # after the row before the draft
SIDES = {1: [21, 22], 3: [31], 4: [41, 42]}  # by the main row that they follow


def both_ways(
    runner: ModelRunner, num_before: int, num_late: int
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Logits of the main rows and of each side path: in one pass, and of each text by itself.

    Args:
        runner: has room for all.
        num_before: rows before the draft.
        num_late: of them that are in the pass with it, the last among them.
    """
    prompt, pool = random_prompt(1, num_before), runner.pool
    size, start = pool.block_size, num_before - num_late
    table = pool.new_table()
    table.resize(num_before + len(MAIN))
    if start:
        runner.forward([SequenceRows(table, 0, prompt[:start], 0)])
    main = SequenceRows(table, start, prompt[start:] + MAIN, 1 + len(MAIN))
    sequences, own = [main], []
    for after, tokens in SIDES.items():
        first = num_before + after
        index = first // size
        fresh = pool.allocate((first + len(tokens) - 1) // size + 1 - index)
        own += fresh
        block_ids = [*table.block_ids[:index], *fresh]
        first_shared = max(index * size, start)
        sequences.append(
            SequenceRows(
                BlockList(block_ids, first + len(tokens)),
                first,
                tokens,
                len(tokens),
                copied_block=table.block_ids[index] if index * size < num_before else None,
                shared_rows=tuple(range(first_shared - start, first - start)),
            )
        )
    counts = [one.num_logits for one in sequences]
    together = [part.clone() for part in runner.forward(sequences).split(counts)]
    pool.free(own)
    table.free()
    texts = [prompt + MAIN] + [prompt + MAIN[:after] + tokens for after, tokens in SIDES.items()]
    alone = []
    for text, count in zip(texts, counts, strict=True):
        table.resize(len(text))
        alone.append(runner.forward([SequenceRows(table, 0, text, count)]).clone())
        table.free()
    pool.check([])
    return together, alone


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("attention", ["auto", "reference"])
@pytest.mark.parametrize("num_late", [1, 3, 20])
@pytest.mark.parametrize("num_before", [20, 28, 29, 30, 31, 32, 33, 62])
def test_side_paths_are_the_bits_of_their_texts(
    num_before: int, num_late: int, attention: str, dtype: Any
) -> None:
    """Wherever blocks and spans of keys end."""
    runner = make_runner(attention=attention, dtype=dtype, max_num_batched_tokens=128)
    # What a former owner leaves in a block is read by nobody.
    for keys, values in own_storage(runner).blocks:
        keys.fill_(float("nan"))
        values.fill_(float("nan"))
    runner.backend.storage.clear_blocks([own_storage(runner).null_block])
    together, alone = both_ways(runner, num_before, num_late)
    for number, (one, other) in enumerate(zip(together, alone, strict=True)):
        assert torch.equal(one, other), f"path {number}"


def test_a_side_path_without_its_shared_rows_is_seen() -> None:
    """What the test above compares does depend on them."""
    runner = make_runner()
    prompt, pool = random_prompt(1, 20), runner.pool
    table = pool.new_table()
    table.resize(21)
    runner.forward([SequenceRows(table, 0, prompt[:19], 0)])
    found = []
    for shared in ((), (0,)):  # the second time the row is there to be copied
        fresh = pool.allocate(1)
        block_ids = [table.block_ids[0], *fresh]
        side = SequenceRows(
            BlockList(block_ids, 21), 20, [5], 1, table.block_ids[1], shared_rows=shared
        )
        main = SequenceRows(table, 19, prompt[19:], 1)
        found.append(runner.forward([main, side])[1].clone())
        pool.free(fresh)
    table.free()
    assert not torch.equal(*found)


def test_where_they_cannot_be_stored_they_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on pages of a GPU."""
    runner = make_runner()
    monkeypatch.setattr(type(runner.backend), "stores_shared_rows", False)
    assert not runner.takes_trees
    table = runner.pool.new_table()
    table.resize(3)
    main = SequenceRows(table, 0, [1, 2, 3], 1)
    side = SequenceRows(BlockList(runner.pool.allocate(1), 2), 1, [5], 1, shared_rows=(0,))
    with pytest.raises(ValueError, match="side paths of drafts are not served here"):
        runner.forward([main, side])
    assert not PagedBackend.stores_shared_rows
