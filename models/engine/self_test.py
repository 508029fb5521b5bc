"""Start-up test: are the logits of a row the same bits however the row was batched?

Random tokens go through the model once in one pass and then in the ways that serving uses. These
are row by row, in verify rounds of several rows, in chunks, and beside strangers of other lengths.
Blocks are side by side or scattered. The answer is published, not assumed: it depends on CPU,
torch, dtype, threads and checkpoint.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from models.kv.block_pool import BlockPool, BlockTable
from models.kv.rows import SequenceRows

_NUM_TOKENS = 150  # three key chunks, three query tiles or ten
_STRANGER_TOKENS = (7, 520)
# Beside it the longer stranger is padded to more chunks than torch adds in one go, which are 16.
_FAR_TOKENS = 1030
_CHUNK_ROWS = 37
_ROUND_STARTS = (141, 64, 15, 0)  # falling: rows after a pass are given up
_CROWDED_STARTS = (141, 15)
_ROUND_ROWS = (1, 2, 6, 9)
_STRANGER_ROWS = (1, 5)
_SPARE_BLOCKS = 2  # between scattered ones


class Forward(Protocol):
    """The part of a runner that the test needs."""

    pool: BlockPool
    vocab_size: int
    max_model_len: int
    max_num_batched_tokens: int

    def forward(self, sequences: Sequence[SequenceRows]) -> Tensor:
        """Compute one pass."""
        ...


class _Session(NamedTuple):
    table: BlockTable
    text: list[int]

    def rows(self, start: int, count: int) -> SequenceRows:
        """Return up to `count` rows from `start` on, with all their logits."""
        part = self.text[start : start + count]
        return SequenceRows(self.table, start, part, len(part))

    def last_rows(self, count: int) -> SequenceRows:
        """Return the last rows, with logits of the very last."""
        start = max(0, len(self.text) - count)
        return SequenceRows(self.table, start, self.text[start:], 1)


def is_batch_invariant(runner: Forward) -> bool:
    """Return whether all ways of batching gave the same logits, bit for bit.

    The pool is left as it was. Lengths shrink to the room of the pool, the context and a pass. It
    must be called before any other computation, because the contents of blocks must be finite.
    """
    generator = torch.Generator().manual_seed(0)
    pool = runner.pool
    wanted = (_NUM_TOKENS, *_STRANGER_TOKENS, _NUM_TOKENS, _FAR_TOKENS)[: pool.num_free]
    room = min(runner.max_model_len, pool.num_free // len(wanted) * pool.block_size)
    texts = [
        torch.randint(runner.vocab_size, (min(length, room),), generator=generator).tolist()
        for length in wanted
    ]
    texts[3:4] = texts[:1] if len(texts) > 3 else []
    sessions = [_Session(pool.new_table(), text) for text in texts]
    try:
        # The first are side by side; the longer stranger, and the text's second place, are not.
        for index in (0, 1, 4, 2, 3):
            for table, text in sessions[index : index + 1]:
                _reserve(pool, table, len(text), num_spare=_SPARE_BLOCKS if index in (2, 3) else 0)
        return _same_logits(runner, sessions)
    finally:
        for session in sessions:
            session.table.free()


def _reserve(pool: BlockPool, table: BlockTable, num_tokens: int, *, num_spare: int) -> None:
    """Room in a table, with blocks of nobody between its own as far as the pool has them."""
    size = pool.block_size
    num_left = pool.blocks_for(num_tokens)
    spare: list[int] = []
    for stop in range(size, num_tokens + size, size):
        table.resize(min(stop, num_tokens))
        num_left -= 1
        if pool.num_free >= num_left + num_spare:
            spare += pool.allocate(num_spare)
    pool.free(spare)


def _same_logits(runner: Forward, sessions: list[_Session]) -> bool:
    first, *others = sessions
    strangers, elsewhere, far = others[:2], others[2:3], others[3:]
    limit = runner.max_num_batched_tokens
    num_last = max(_ROUND_ROWS)
    of_strangers = [_run_whole(runner, stranger, limit, num_last) for stranger in strangers]
    expected = _run_whole(runner, first, limit)
    for session in elsewhere or [first]:
        if not torch.equal(_run_whole(runner, session, min(_CHUNK_ROWS, limit)), expected):
            return False
    crowd = [
        stranger.last_rows(num_rows)
        for stranger, num_rows in zip(strangers, _STRANGER_ROWS, strict=False)
    ]
    rounds = [(first, start) for start in _ROUND_STARTS]
    rounds += [(session, _ROUND_STARTS[0]) for session in elsewhere]
    for session, start in rounds:
        wanted = expected[start:]
        crowds = [crowd] if start in _CROWDED_STARTS else []
        if not _keeps_bits(runner, session, start, wanted, crowds):
            return False
    if not far:
        return True
    start = max(0, len(strangers[1].text) - num_last)
    crowds = [[far[0].last_rows(_STRANGER_ROWS[1])]]  # the KV it attends to was never computed
    return _keeps_bits(runner, strangers[1], start, of_strangers[1], crowds)


def _keeps_bits(
    runner: Forward,
    session: _Session,
    start: int,
    expected: Tensor,  # logits of its rows from `start` on
    crowds: list[list[SequenceRows]],
) -> bool:
    """Return whether rounds from `start` on have the expected logits, alone and in each crowd."""
    for num_rows in _ROUND_ROWS:
        rows = session.rows(start, num_rows)
        count = rows.num_logits
        for crowd in ([], *crowds):
            batch = [*crowd[:1], rows, *crowd[1:]]
            num_batched = sum(len(each.token_ids) for each in batch)
            if not count or num_batched > runner.max_num_batched_tokens:
                continue
            skipped = sum(each.num_logits for each in crowd[:1])
            logits = runner.forward(batch)[skipped : skipped + count]
            if not torch.equal(logits, expected[:count]):
                return False
    return True


def _run_whole(
    runner: Forward, session: _Session, chunk: int, num_logits: int | None = None
) -> Tensor:
    """Logits of the last rows of a session, or of all, in passes of `chunk` rows."""
    first = 0 if num_logits is None else len(session.text) - num_logits
    parts = []
    for start in range(0, len(session.text), chunk):
        rows = session.rows(start, chunk)
        wanted = min(rows.num_logits, max(0, start + rows.num_logits - first))
        logits = runner.forward([replace(rows, num_logits=wanted)])
        parts.append(logits.clone())  # the next pass may overwrite them
    return torch.cat(parts)
