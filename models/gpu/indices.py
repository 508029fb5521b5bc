"""The index arrays of a ragged pass over paged KV, padded or not. Plain ints and numpy; no model.

A pass of R rows and S sessions is described as a paged attention kernel wants it. It has each row's
slot for its key and the cumulative row counts of sessions. It also has the number of each session's
keys and the block table of their pages. All of it travels to the device in two arrays, one of int64
and one of int32. `PassTensors` cuts them into views.

Padding adds rows and sessions without an owner. Padded rows share spare sessions, whose keys are
theirs alone. They lie in the null block at the rows' positions, so nothing is read that was never
written. Sessions left over have no rows and no keys. No real session's rows, keys or blocks are
touched.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from models.device import array_to_device
from models.kv.rows import SequenceRows


@dataclass(frozen=True, slots=True)
class PassShape:
    """The sizes that the arrays of a pass have.

    Attributes:
        num_rows: R, padded rows included.
        num_sessions: S, padded sessions included.
        table_width: W, blocks per session in the block table.
        session_rows: padded rows that share a session.
    """

    num_rows: int
    num_sessions: int
    table_width: int
    session_rows: int = 1

    @property
    def num_longs(self) -> int:
        """Elements of the int64 array: ids, positions, slots."""
        return 3 * self.num_rows

    @property
    def num_ints(self) -> int:
        """Elements of the int32 array: two cumulative counts, key counts, block table."""
        return 2 * (self.num_sessions + 1) + self.num_sessions * (1 + self.table_width)

    def cut(self, ints: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return views of the int32 array: cumulative counts [2, S + 1], key counts, table."""
        last_sum = 2 * (self.num_sessions + 1)
        last_count = last_sum + self.num_sessions
        return (
            ints[:last_sum].reshape(2, -1),
            ints[last_sum:last_count],
            ints[last_count:].reshape(self.num_sessions, self.table_width),
        )


class PassArrays(NamedTuple):
    """The arrays of a pass on the host."""

    longs: np.ndarray  # [shape.num_longs] int64
    ints: np.ndarray  # [shape.num_ints] int32


class PassTensors(NamedTuple):
    """The same on the device, cut into views."""

    token_ids: Tensor  # [R] int64
    positions: Tensor  # [R] int64
    row_slots: Tensor  # [R] int64
    cumulative_rows: Tensor  # [S + 1] int32
    cumulative_keys: Tensor  # [S + 1] int32
    num_keys: Tensor  # [S] int32
    block_table: Tensor  # [S, W] int32

    @classmethod
    def cut(cls, shape: PassShape, longs: Tensor, ints: Tensor) -> PassTensors:
        """Views into the first elements of `longs` and `ints`."""
        rows, sessions = shape.num_rows, shape.num_sessions
        ids, positions, slots = longs[: shape.num_longs].split(rows)
        cumulative_rows, cumulative_keys, num_keys, table = ints[: shape.num_ints].split(
            [sessions + 1, sessions + 1, sessions, sessions * shape.table_width]
        )
        return cls(
            token_ids=ids,
            positions=positions,
            row_slots=slots,
            cumulative_rows=cumulative_rows,
            cumulative_keys=cumulative_keys,
            num_keys=num_keys,
            block_table=table.view(sessions, shape.table_width),
        )


def exact_shape(sequences: Sequence[SequenceRows], block_size: int) -> PassShape:
    """Return the shape of a pass without padding."""
    return PassShape(
        num_rows=sum(len(rows.token_ids) for rows in sequences),
        num_sessions=len(sequences),
        table_width=max(rows.num_blocks_read(block_size) for rows in sequences),
    )


def padded_shape(num_rows: int, table_width: int) -> PassShape:
    """Return the shape of a pass of one row a session that is padded to `num_rows` rows."""
    return PassShape(num_rows=num_rows, num_sessions=num_rows, table_width=table_width)


def index_pass(
    sequences: Sequence[SequenceRows], shape: PassShape, block_size: int, null_block: int
) -> PassArrays:
    """Return the arrays of a pass of `sequences`, padded to `shape`.

    Raises:
        ValueError: the shape has too few rows, sessions or blocks for it or for its padding.
    """
    counts = [len(rows.token_ids) for rows in sequences]
    num_rows = sum(counts)
    spare = _spare_sessions(shape.num_rows - num_rows, shape.session_rows)
    num_left = shape.num_sessions - len(sequences) - len(spare)
    if num_rows > shape.num_rows or num_left < 0:
        raise ValueError(
            f"{num_rows} rows of {len(sequences)} sessions do not fit in {shape.num_rows} rows "
            f"of {shape.num_sessions} sessions"
        )
    widths = [rows.num_blocks_read(block_size) for rows in sequences]
    widest = max([*widths, -(-max(spare, default=0) // block_size)])
    if widest > shape.table_width:
        raise ValueError(f"{widest} blocks do not fit in a table of {shape.table_width}")
    ends = [rows.start + count for rows, count in zip(sequences, counts, strict=True)]
    padding = [*spare, *[0] * num_left]
    num_own, keys = np.array([*counts, *padding]), np.array([*ends, *padding])
    ints = np.empty(shape.num_ints, dtype=np.int32)
    sums, num_keys, table = shape.cut(ints)
    sums[:, 0] = 0
    sums[0, 1:] = stops = num_own.cumsum()
    sums[1, 1:] = keys.cumsum()
    num_keys[:] = keys
    table[:] = null_block
    for entry, rows, width in zip(table, sequences, widths, strict=False):
        entry[:width] = rows.table.block_ids[:width]
    ids, positions, slots = longs = np.zeros((3, shape.num_rows), dtype=np.int64)
    ids[:num_rows] = list(chain.from_iterable(rows.token_ids for rows in sequences))
    # A row's position is its index, less that of its session's end, plus the session's keys.
    np.add(np.arange(shape.num_rows), (keys - stops).repeat(num_own), out=positions)
    session = np.arange(shape.num_sessions).repeat(num_own)
    page, offset = np.divmod(positions, block_size)
    slots[:] = table[session, page]
    slots *= block_size
    slots += offset
    return PassArrays(longs.ravel(), ints)


def _spare_sessions(num_padded: int, session_rows: int) -> list[int]:
    """Return the rows of each session that padded rows share."""
    return [min(session_rows, num_padded - first) for first in range(0, num_padded, session_rows)]


def upload(arrays: PassArrays, shape: PassShape, device: torch.device) -> PassTensors:
    """Return the arrays of a pass as tensors on the device."""
    longs, ints = (array_to_device(array, device) for array in arrays)
    return PassTensors.cut(shape, longs, ints)
