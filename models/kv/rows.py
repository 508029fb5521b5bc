"""One session's part in a ragged pass: what engines hand to a runner, and ranks to one another."""

from __future__ import annotations

from dataclasses import dataclass

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
    """

    table: BlockTable | BlockList
    start: int
    token_ids: list[int]
    num_logits: int
    copied_block: int | None = None

    def num_blocks_read(self, block_size: int) -> int:
        """Blocks to the last row; those after it are reserved and may hold anything."""
        return -(-(self.start + len(self.token_ids)) // block_size)
