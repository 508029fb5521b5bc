"""Messages of the leader of a tensor-parallel group: work for all ranks, wait on, or stop.

A message is a flat list of 32-bit integers, because a process group can broadcast that without
pickling. It has its kind, then for a pass each session's rows as

    start, num_logits, copied block or -1, number of the adapter or 0,
    number of tokens, of blocks, of shared rows,
    tokens..., blocks..., shared rows...

Followers need nothing else: KV is addressed by block ids, and rolling back is by length. Blocks
after a session's last row are not sent; nothing but padding is ever read from them. A message
travels in one frame of fixed size. The few longer ones (prompts) take a second frame, so that a
decode pass costs one broadcast.

Drafting in the target is work of the same kind, step by step. Only the leader knows its draws and
the number of steps. States that a step begins with follow its message as a tensor, whose shape the
message says.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from models.kv.rows import BlockList, SequenceRows

FRAME_INTS = 1024  # 4 KiB: a pass of about 150 decode rows with contexts of 100 blocks in all
_PASS, _IDLE, _STOP, _DRAFT_PASS, _HEAD_PASS, _CLEAR_KEYS = 1, 2, 3, 4, 5, 6
_NO_BLOCK = -1


@dataclass(frozen=True, slots=True)
class Pass:
    """Compute these rows."""

    sequences: list[SequenceRows]


@dataclass(frozen=True, slots=True)
class DraftPass:
    """Run these rows through what drafts with the model.

    Attributes:
        sequences: the rows.
        width: F of the states [rows, F] that follow; 0: none do.
    """

    sequences: list[SequenceRows]
    width: int

    @property
    def shape(self) -> tuple[int, int]:
        """The shape of the states."""
        return sum(len(each.token_ids) for each in self.sequences), self.width


@dataclass(frozen=True, slots=True)
class HeadPass:
    """Make logits of the states that follow, one of each session for each head.

    Attributes:
        shape: [S, H, F] of the states.
    """

    shape: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ClearKeys:
    """Have zeros in these blocks for keys of what drafts with the model."""

    block_ids: list[int]


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to compute; the leader is alive."""


@dataclass(frozen=True, slots=True)
class Stop:
    """There will be no further message."""


Work = Pass | DraftPass | HeadPass | ClearKeys
PassMessage = Work | Idle | Stop


def encode(message: PassMessage, block_size: int) -> list[int]:
    """Return the integers of a message; `block_size` in tokens."""
    match message:
        case Idle():
            return [_IDLE]
        case Stop():
            return [_STOP]
        case ClearKeys(block_ids):
            return [_CLEAR_KEYS, len(block_ids), *block_ids]
        case HeadPass(shape):
            return [_HEAD_PASS, *shape]
        case DraftPass(sequences, width):
            return [_DRAFT_PASS, width, *_encode_rows(sequences, block_size)]
        case Pass(sequences):
            return [_PASS, *_encode_rows(sequences, block_size)]


def _encode_rows(sequences: Sequence[SequenceRows], block_size: int) -> list[int]:
    ints = [len(sequences)]
    for sequence in sequences:
        num_blocks = sequence.num_blocks_read(block_size)
        copied = _NO_BLOCK if sequence.copied_block is None else sequence.copied_block
        ints += (sequence.start, sequence.num_logits, copied, sequence.adapter)
        ints += (len(sequence.token_ids), num_blocks, len(sequence.shared_rows))
        ints += sequence.token_ids
        ints += sequence.table.block_ids[:num_blocks]
        ints += sequence.shared_rows
    return ints


def decode(ints: Sequence[int]) -> PassMessage:
    """Decode the message of these integers.

    Raises:
        ValueError: they are not one whole message.
    """
    reader = iter(ints)
    try:
        message = _read(reader)
    except StopIteration:
        raise ValueError(f"a pass message ends within its {len(ints)} integers") from None
    num_left = sum(1 for _ in reader)
    if num_left:
        raise ValueError(f"{num_left} of {len(ints)} integers after the end of a pass message")
    return message


def _read(reader: Iterator[int]) -> PassMessage:
    kind = next(reader)
    read = _READERS.get(kind)
    if read is None:
        raise ValueError(f"unknown kind of pass message: {kind}")
    return read(reader)


def _read_draft_pass(reader: Iterator[int]) -> DraftPass:
    width = next(reader)
    return DraftPass(_read_sequences(reader), width)


def _read_sequences(reader: Iterator[int]) -> list[SequenceRows]:
    return [_read_rows(reader) for _ in range(next(reader))]


def _read_rows(reader: Iterator[int]) -> SequenceRows:
    start, num_logits, copied, adapter = _take(reader, 4)
    num_tokens, num_blocks, num_shared = _take(reader, 3)
    token_ids = _take(reader, num_tokens)
    table = BlockList(_take(reader, num_blocks), start + num_tokens)
    copied_block = None if copied == _NO_BLOCK else copied
    shared_rows = tuple(_take(reader, num_shared))
    return SequenceRows(table, start, token_ids, num_logits, copied_block, shared_rows, adapter)


def _take(reader: Iterator[int], count: int) -> list[int]:
    return [next(reader) for _ in range(count)]


_READERS: dict[int, Callable[[Iterator[int]], PassMessage]] = {
    _PASS: lambda reader: Pass(_read_sequences(reader)),
    _DRAFT_PASS: _read_draft_pass,
    _HEAD_PASS: lambda reader: HeadPass(tuple(_take(reader, 3))),
    _CLEAR_KEYS: lambda reader: ClearKeys(_take(reader, next(reader))),
    _IDLE: lambda reader: Idle(),
    _STOP: lambda reader: Stop(),
}
