"""One session's part in a ragged pass: what engines hand to a runner, and ranks to one another."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from models.kv.block_pool import BlockTable


@dataclass(frozen=True, slots=True)
class BlockList:
    """A block table as it was at one time, for ranks that hold no pool."""

    block_ids: list[int]
    num_tokens: int


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """One session's rows in a ragged pass.

    Attributes:
        table: the session's blocks, already resized to at least `start + len(token_ids)`.
        start: position of the first row, which is the number of tokens whose KV is there.
        token_ids: the ids of the rows, never empty.
        num_logits: logits wanted, for the last `num_logits` rows; 0 while a prompt is chunked.
        copied_block: a block whose first rows are those before `start` of the block that `start`
            is in, which is empty yet; they are copied before the pass.
        shared_rows: of a side path of a draft tree the rows of the pass, before its own, that are
            those just before `start` too: their keys are stored in this table as well. They are in
            the block that `start` is in, and take the place of what was copied there.
        adapter: number of the session's adapter among those of the config, from 1; 0: none.
    """

    table: BlockTable | BlockList
    start: int
    token_ids: list[int]
    num_logits: int
    copied_block: int | None = None
    shared_rows: tuple[int, ...] = ()
    adapter: int = 0

    @property
    def first_written(self) -> int:
        """Position of the first row that the pass writes in the table."""
        return self.start - len(self.shared_rows)

    def slots(self, first: int, stop: int, block_size: int) -> list[int]:
        """Slots of positions [first, stop)."""
        blocks = self.table.block_ids
        return [blocks[p // block_size] * block_size + p % block_size for p in range(first, stop)]

    def num_blocks_read(self, block_size: int) -> int:
        """Blocks to the last row; those after it are reserved and may hold anything."""
        return -(-(self.start + len(self.token_ids)) // block_size)


def further_slots(
    sequences: Sequence[SequenceRows], block_size: int
) -> tuple[list[int], list[int]]:
    """Rows of a pass whose keys are stored once more, and where: those that side paths share."""
    rows: list[int] = []
    slots: list[int] = []
    for sequence in sequences:
        rows += sequence.shared_rows
        slots += sequence.slots(sequence.first_written, sequence.start, block_size)
    return rows, slots


def copied_blocks(
    sequences: Sequence[SequenceRows], block_size: int
) -> tuple[list[int], list[int]]:
    """Blocks that sequences begin with copies of, and where the copies go."""
    pairs = [
        (each.copied_block, each.table.block_ids[each.start // block_size])
        for each in sequences
        if each.copied_block is not None
    ]
    return [source for source, _ in pairs], [target for _, target in pairs]


def entered_blocks(sequences: Sequence[SequenceRows], block_size: int) -> list[int]:
    """Blocks that a pass enters at their first slot: those that sessions just got."""
    return [
        sequence.table.block_ids[index]
        for sequence in sequences
        for index in range(
            -(-sequence.first_written // block_size),
            -(-(sequence.start + len(sequence.token_ids)) // block_size),
        )
    ]


def with_ids(sequences: Sequence[SequenceRows], ids: Sequence[int]) -> list[SequenceRows]:
    """Replace the token ids of the rows, in order."""
    made, start = [], 0
    for sequence in sequences:
        stop = start + len(sequence.token_ids)
        made.append(replace(sequence, token_ids=list(ids[start:stop])))
        start = stop
    return made
