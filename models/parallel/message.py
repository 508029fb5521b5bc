"""What the leader of a tensor-parallel group announces: the next pass, wait on, or stop.

A message is a flat list of 32-bit integers, because that is what a process group can broadcast
without pickling: its kind, then for a pass each session's rows as

    start, num_logits, copied block or -1, number of tokens, number of blocks, tokens..., blocks...

Followers need nothing else: KV is addressed by block ids, and rolling back is by length. Blocks
after a session's last row are not sent; nothing but padding is ever read from them. A message
travels in one frame of fixed size, and the few that are longer (prompts) in a second one, so that
a decode pass costs one broadcast.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from models.kv.rows import BlockList, SequenceRows

FRAME_INTS = 1024  # 4 KiB: a pass of about 150 decode rows with contexts of 100 blocks in all
_PASS, _IDLE, _STOP = 1, 2, 3
_NO_BLOCK = -1


@dataclass(frozen=True, slots=True)
class Pass:
    """Compute these rows."""

    sequences: list[SequenceRows]


@dataclass(frozen=True, slots=True)
class Idle:
    """Nothing to compute; the leader is alive."""


@dataclass(frozen=True, slots=True)
class Stop:
    """There will be no further message."""


PassMessage = Pass | Idle | Stop


def encode(message: PassMessage, block_size: int) -> list[int]:
    """The integers of a message; `block_size` in tokens."""
    if isinstance(message, Idle):
        return [_IDLE]
    if isinstance(message, Stop):
        return [_STOP]
    ints = [_PASS, len(message.sequences)]
    for sequence in message.sequences:
        num_tokens = len(sequence.token_ids)
        num_blocks = sequence.num_blocks_read(block_size)
        copied = _NO_BLOCK if sequence.copied_block is None else sequence.copied_block
        ints += (sequence.start, sequence.num_logits, copied, num_tokens, num_blocks)
        ints += sequence.token_ids
        ints += sequence.table.block_ids[:num_blocks]
    return ints


def decode(ints: Sequence[int]) -> PassMessage:
    """The message of these integers.

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
    if kind == _IDLE:
        return Idle()
    if kind == _STOP:
        return Stop()
    if kind != _PASS:
        raise ValueError(f"unknown kind of pass message: {kind}")
    return Pass([_read_rows(reader) for _ in range(next(reader))])


def _read_rows(reader: Iterator[int]) -> SequenceRows:
    start, num_logits, copied, num_tokens, num_blocks = _take(reader, 5)
    token_ids = _take(reader, num_tokens)
    table = BlockList(_take(reader, num_blocks), start + num_tokens)
    return SequenceRows(
        table, start, token_ids, num_logits, None if copied == _NO_BLOCK else copied
    )


def _take(reader: Iterator[int], count: int) -> list[int]:
    return [next(reader) for _ in range(count)]
