"""Start-up test: are the logits of a row the same bits however the row was batched?

Random tokens go through the model once in one pass and then in the ways that serving uses: row
by row, in verify rounds of several rows, in chunks, and beside strangers of other lengths. The
answer is published, not assumed: it depends on CPU, torch, dtype, threads and checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor

from models.kv_cache import BlockPool, BlockTable
from models.sequence_rows import SequenceRows

_NUM_TOKENS = 150  # three key chunks, ten query tiles
_STRANGER_TOKENS = (7, 301)
_CHUNK_ROWS = 37
_ROUND_STARTS = (141, 64, 15, 0)  # falling: rows behind a pass are given up
_CROWDED_STARTS = (141, 15)
_ROUND_ROWS = (1, 2, 6, 9)
_STRANGER_ROWS = (1, 5)


class Forward(Protocol):
    """What the test needs of a runner."""

    pool: BlockPool
    vocab_size: int
    max_model_len: int
    max_batch_rows: int

    def forward(self, sequences: Sequence[SequenceRows]) -> Tensor:
        """One pass."""
        ...


def is_batch_invariant(runner: Forward) -> bool:
    """Whether every way of batching gave the same logits, bit for bit. Leaves the pool as it was.

    Lengths shrink to what the pool, the context and a pass have room for.
    """
    generator = torch.Generator().manual_seed(0)
    pool = runner.pool
    wanted = (_NUM_TOKENS, *_STRANGER_TOKENS)[: pool.num_free]
    room = min(runner.max_model_len, pool.num_free // len(wanted) * pool.block_size)
    lengths = [min(length, room) for length in wanted]
    texts = [
        torch.randint(runner.vocab_size, (length,), generator=generator).tolist()
        for length in lengths
    ]
    tables = [pool.new_table() for _ in texts]
    try:
        for table, text in zip(tables, texts, strict=True):
            table.resize(len(text))
        return _same_logits(runner, list(zip(tables, texts, strict=True)))
    finally:
        for table in tables:
            table.free()


def _same_logits(runner: Forward, sessions: list[tuple[BlockTable, list[int]]]) -> bool:
    (table, text), *strangers = sessions
    limit = runner.max_batch_rows
    for stranger, other in strangers:
        _run_whole(runner, stranger, other, limit)
    expected = _run_whole(runner, table, text, limit)
    if not torch.equal(_run_whole(runner, table, text, min(_CHUNK_ROWS, limit)), expected):
        return False
    crowd = [
        SequenceRows(stranger, max(0, len(other) - num_rows), other[-num_rows:], 1)
        for (stranger, other), num_rows in zip(strangers, _STRANGER_ROWS, strict=False)
    ]
    for start in _ROUND_STARTS:
        for num_rows in _ROUND_ROWS:
            part = text[start : start + num_rows]
            rows = SequenceRows(table, start, part, len(part))
            batches = [[rows]]
            if start in _CROWDED_STARTS:
                batches.append([*crowd[:1], rows, *crowd[1:]])
            for batch in batches:
                if not part or sum(len(each.token_ids) for each in batch) > limit:
                    continue
                skipped = sum(each.num_logits for each in batch[: batch.index(rows)])
                logits = runner.forward(batch)[skipped : skipped + len(part)]
                if not torch.equal(logits, expected[start : start + len(part)]):
                    return False
    return True


def _run_whole(runner: Forward, table: BlockTable, text: list[int], chunk: int) -> Tensor:
    """Logits of all rows of `text`, in passes of `chunk` rows."""
    parts = []
    for first in range(0, len(text), chunk):
        part = text[first : first + chunk]
        parts.append(runner.forward([SequenceRows(table, first, part, len(part))]))
    return torch.cat(parts)
