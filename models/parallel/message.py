"""Messages of the leader of a tensor-parallel group: work for all ranks, wait on, or stop.

A pass is told as each session's rows and blocks. Followers need nothing else: KV is addressed by
block ids, and rolling back is by length. Blocks after a session's last row are not sent; nothing
but padding is ever read from them. A message travels in one frame of fixed size. The few longer
ones (prompts) take a second frame, so that a decode pass costs one broadcast.

Drafting in the target is work of the same kind, step by step. Only the leader knows its draws and
the number of steps. States that a step begins with follow its message as a tensor, whose shape the
message says.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from models.kv.rows import BlockList, SequenceRows


class SentRows(msgspec.Struct, frozen=True, array_like=True):
    """`SequenceRows` as they are sent: of the table the blocks that are read."""

    block_ids: list[int]
    start: int
    token_ids: list[int]
    num_logits: int
    copied_block: int | None
    shared_rows: tuple[int, ...]
    adapter: int


def sent(sequences: Sequence[SequenceRows], block_size: int) -> list[SentRows]:
    """Return rows as they are sent; `block_size` in tokens."""
    return [
        SentRows(
            each.table.block_ids[: each.num_blocks_read(block_size)],
            each.start,
            each.token_ids,
            each.num_logits,
            each.copied_block,
            each.shared_rows,
            each.adapter,
        )
        for each in sequences
    ]


def received(rows: Sequence[SentRows]) -> list[SequenceRows]:
    """Return rows that were sent, each with a table of its own."""
    return [
        SequenceRows(
            BlockList(each.block_ids, each.start + len(each.token_ids)),
            each.start,
            each.token_ids,
            each.num_logits,
            each.copied_block,
            each.shared_rows,
            each.adapter,
        )
        for each in rows
    ]


class Pass(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Compute these rows."""

    rows: list[SentRows]


class DraftPass(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Run these rows through what drafts with the model.

    Attributes:
        rows: of each session.
        width: F of the states [rows, F] that follow; 0: none do.
    """

    rows: list[SentRows]
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the states."""
        return sum(len(each.token_ids) for each in self.rows), self.width


class HeadPass(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Make logits of the states that follow, one of each session for each head.

    Attributes:
        shape: [S, H, F] of the states.
    """

    shape: tuple[int, ...]


class ClearKeys(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Have zeros in these blocks for keys of what drafts with the model."""

    block_ids: list[int]


class Idle(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Nothing to compute; the leader is alive."""


class Stop(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """There will be no further message."""


Work = Pass | DraftPass | HeadPass | ClearKeys
PassMessage = Work | Idle | Stop

# Messages that are broken raise `msgspec.DecodeError`.
encode = msgspec.msgpack.Encoder().encode
decode = msgspec.msgpack.Decoder(PassMessage).decode
