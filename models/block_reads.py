"""How a pass comes to the KV blocks of its sessions: read where they lie, or copied together.

Products over many blocks at once need them in one stretch of memory. Blocks that lie side by side
in the storage are such a stretch already, whoever they belong to; what is scattered, or belongs to
several sessions of the pass, is copied. The products are then sorted by session, which is cheap:
a block's scores are a small part of the block.

Where blocks are smaller than the chunks that products are made of, they are always copied, and so
joined to chunks.

Shape letters: S sessions, J chunks of each (padded), n chunks read. A chunk is a block but where
blocks are joined.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from models.device_copy import to_device

_LEAST_RUN = 4  # blocks; shorter stretches are copied with the rest
_GAP = 1  # blocks of nobody that a stretch may have between two blocks of somebody


@dataclass(frozen=True, slots=True)
class Sorting:
    """From blocks in the order they are read to J blocks for each session, and back.

    Only for blocks that are chunks.

    Attributes:
        owned: [S * J] which read block each is; behind a session's last, its first.
        filled: [S * J] the same, but n behind a session's last.
        sources: [n] which of S * J each read block is; anything for a block of nobody.
        is_padded: whether any session has fewer than J blocks.
    """

    owned: Tensor
    filled: Tensor
    sources: Tensor
    is_padded: bool


@dataclass(frozen=True, slots=True)
class BlockReads:
    """The chunks of S sessions, n of them in the order they are read.

    Attributes:
        blocks_per_chunk: more than 1 only where all are copied.
        runs: stretches [first, stop) of the storage that are read where they are.
        copied: blocks that are copied, read behind the runs; None where there are none.
        owners: [n] the session each read chunk is multiplied for.
        sorting: None where they are in order: J of the first session, J of the second...
    """

    blocks_per_chunk: int
    runs: list[tuple[int, int]]
    copied: Tensor | None
    owners: Tensor
    sorting: Sorting | None

    def parts(self, blocks: Tensor) -> list[Tensor]:
        """The chunks to read of `blocks` [blocks, K, block_size, D], some in each [*, K, C, D]."""
        parts = [blocks[first:stop] for first, stop in self.runs]
        if self.copied is not None:
            copied = blocks.index_select(0, self.copied)
            joined = copied.unflatten(0, (-1, self.blocks_per_chunk)).transpose(1, 2)
            parts.append(joined.flatten(2, 3))
        return parts


def plan_reads(
    tables: list[list[int]],
    num_chunks: int,
    blocks_per_chunk: int,
    null_block: int,
    device: torch.device,
    must_be_in_one_piece: bool = False,
) -> BlockReads:
    """Reads of sessions with the blocks `tables`, padded to `num_chunks` chunks each.

    Args:
        tables: of each session, its blocks in order; none is empty or longer than its chunks.
        num_chunks: J.
        blocks_per_chunk: blocks that are joined.
        null_block: a block of zeros.
        device: where the storage is.
        must_be_in_one_piece: copy the blocks if they do not lie in order in one stretch.
    """
    runs = _long_runs(tables) if blocks_per_chunk == 1 else []
    if runs:
        reads = _Reads.of(runs, tables)
        sorting = reads.sorting(num_chunks, device)
        num_parts = len(runs) + bool(reads.copied)
        if not must_be_in_one_piece or (sorting is None and num_parts == 1):
            copied = to_device(reads.copied, device) if reads.copied else None
            return BlockReads(1, runs, copied, to_device(reads.owners, device), sorting)
    num_blocks = num_chunks * blocks_per_chunk
    padding = [null_block] * num_blocks
    ids = [(table + padding)[:num_blocks] for table in tables]
    owners = torch.arange(len(tables), device=device).repeat_interleave(num_chunks)
    copied = to_device(ids, device).flatten()
    return BlockReads(blocks_per_chunk, [], copied, owners, None)


def _long_runs(tables: list[list[int]]) -> list[tuple[int, int]]:
    """Stretches worth reading in place; all, if they are one."""
    ids = sorted({block for table in tables for block in table})
    runs: list[tuple[int, int]] = []
    for block in ids:
        if runs and block <= runs[-1][1] + _GAP:
            runs[-1] = (runs[-1][0], block + 1)
        else:
            runs.append((block, block + 1))
    if len(runs) == 1:
        return runs
    return [(first, stop) for first, stop in runs if stop - first >= _LEAST_RUN]


@dataclass(slots=True)
class _Reads:
    """Who is multiplied with each block that is read."""

    owners: list[int]  # [n]
    places: list[list[int]]  # of each session: which of the n its blocks are, in order
    copied: list[int]

    @classmethod
    def of(cls, runs: list[tuple[int, int]], tables: list[list[int]]) -> _Reads:
        """The first session that has a block of a run takes it; others get a copy."""
        place_of = {block: place for place, block in enumerate(_blocks_of(runs))}
        owners = [-1] * len(place_of)
        reads = cls(owners, [], [])
        for session, table in enumerate(tables):
            reads.places.append([])
            for block in table:
                place = place_of.get(block)
                if place is None or owners[place] >= 0:
                    place = len(owners)
                    owners.append(-1)
                    reads.copied.append(block)
                owners[place] = session
                reads.places[-1].append(place)
        return reads

    def sorting(self, num_blocks: int, device: torch.device) -> Sorting | None:
        """Where each block belongs; turns owners of -1 into 0."""
        num_read = len(self.owners)
        self.owners[:] = [max(owner, 0) for owner in self.owners]
        owned: list[int] = []
        filled: list[int] = []
        sources = [0] * num_read
        for session, places in enumerate(self.places):
            missing = num_blocks - len(places)
            owned += places + places[:1] * missing
            filled += places + [num_read] * missing
            for index, place in enumerate(places):
                sources[place] = session * num_blocks + index
        if filled == list(range(num_read)):
            return None
        return Sorting(
            owned=to_device(owned, device),
            filled=to_device(filled, device),
            sources=to_device(sources, device),
            is_padded=num_read in filled,
        )


def _blocks_of(runs: list[tuple[int, int]]) -> Iterator[int]:
    for first, stop in runs:
        yield from range(first, stop)
