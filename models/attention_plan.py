"""Index tensors of one ragged pass: which keys each tile of query rows reads, and which it sees.

All rows of a pass lie on one flat axis. `plan_pass` turns the sessions of a pass into tensors once;
`models/attention.py` uses them in every layer. Each distinct window of the model's layers has its
own masks, made here; a window that hides nothing from a tile shares the causal mask.

Shape letters: R rows of the pass, H query heads, K key heads, G = H / K, S sessions in one gather,
t rows of a tile, M = G * t, L padded keys, C = KEY_CHUNK.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from models.kv_storage import KVStorage

TILE_ROWS = 16  # rows of the largest tile
FITTING_TILES = (1, 2, 4, 8, TILE_ROWS)  # the smallest that holds a session's rows is taken
FIXED_TILES = (TILE_ROWS,)
KEY_CHUNK = 64
_MIN_PRODUCT_ROWS = 4  # float32 products of fewer rows sum in another order
# Sessions share one padded gather unless the shorter one would more than double its keys.
_FREELY_PADDED_KEYS = 4 * KEY_CHUNK


class Blocks(Protocol):
    """What a pass needs of a `BlockTable`."""

    @property
    def block_ids(self) -> list[int]:
        """The session's blocks in order."""
        ...

    @property
    def num_tokens(self) -> int:
        """Positions there is room for."""
        ...


@dataclass(frozen=True, slots=True)
class SequenceRows:
    """One session's rows in a ragged pass.

    Attributes:
        table: the session's blocks, already resized to at least `start + len(token_ids)`.
        start: position of the first row, which is the number of tokens whose KV is there.
        token_ids: the ids of the rows, never empty.
        num_logits: logits wanted, for the last `num_logits` rows; 0 while a prompt is chunked.
    """

    table: Blocks
    start: int
    token_ids: list[int]
    num_logits: int


@dataclass(frozen=True, slots=True)
class TileBatch:
    """Query tiles that are computed together, one for each session of their gather."""

    first_tile: int  # within the gather
    num_tiles: int
    num_keys: int  # L, at most that of the gather
    masks: dict[int | None, Tensor]  # by window: [tiles, M, L] float32, 0 or -inf


@dataclass(frozen=True, slots=True)
class KeyGather:
    """Keys of S sessions, padded to one length, and the tiles that look at them.

    A single session whose blocks lie side by side is read where it is: `block_index` is None then.
    """

    block_index: Tensor | None  # [K * S * blocks] into KVStorage.blocks
    first_block: int
    num_sequences: int
    num_keys: int  # L
    tile_rows: int  # t
    row_index: Tensor  # [tiles * t] row of the pass at each place of the tiles
    batches: list[TileBatch]


@dataclass(frozen=True, slots=True)
class PagedPass:
    """Everything the attention layers need to know about one pass."""

    storage: KVStorage
    row_slots: Tensor  # [R] slot of each row's key and value
    row_places: Tensor | None  # [R] place of each row in all tiles; None: they are in order
    gathers: list[KeyGather]
    windows: tuple[int | None, ...]  # of each layer


@dataclass(slots=True)
class _Tiles:
    """The tiles of one gather while they are laid out."""

    size: int  # t
    rows: list[int] = field(default_factory=list)  # of the pass, at each place
    ends: list[tuple[int, int]] = field(default_factory=list)  # first and last position of each

    def add(self, first_row: int, sequence: SequenceRows, places: list[int], offset: int) -> None:
        """Lay out one session's rows; `places[row]` becomes offset + its place here."""
        count = len(sequence.token_ids)
        for start in range(0, count, self.size):
            last = min(start + self.size, count) - 1
            self.ends.append((sequence.start + start, sequence.start + last))
            for index in range(start, start + self.size):
                row = first_row + min(index, last)
                if index <= last:
                    places[row] = offset + len(self.rows)
                self.rows.append(row)


@dataclass(frozen=True, slots=True)
class _MaskPlan:
    """Makes the masks of a pass."""

    windows: list[int | None]  # distinct
    num_groups: int  # G
    device: torch.device

    def make(
        self, tile_ends: list[tuple[int, int]], tile_rows: int, num_keys: int
    ) -> dict[int | None, Tensor]:
        """For each window [tiles, M, L]: 0 where a row sees a key, else -inf."""
        firsts, lasts = torch.tensor(tile_ends, device=self.device).T
        positions = firsts[:, None] + torch.arange(tile_rows, device=self.device)
        positions = torch.minimum(positions, lasts[:, None])[:, :, None]  # [tiles, t, 1]
        keys = torch.arange(num_keys, device=self.device)
        is_later = keys > positions
        num_seen = max(last for _, last in tile_ends) + 1
        causal: Tensor | None = None
        masks: dict[int | None, Tensor] = {}
        for window in self.windows:
            if window is not None and window < num_seen:
                masks[window] = self._mask(is_later | (keys <= positions - window))
            else:
                causal = self._mask(is_later) if causal is None else causal
                masks[window] = causal
        return masks

    def _mask(self, is_hidden: Tensor) -> Tensor:
        mask = torch.zeros(is_hidden.shape, device=self.device)
        return mask.masked_fill_(is_hidden, float("-inf")).repeat(1, self.num_groups, 1)


def plan_pass(
    sequences: Sequence[SequenceRows],
    storage: KVStorage,
    num_groups: int,
    windows: Sequence[int | None],
    tile_sizes: Sequence[int] = FITTING_TILES,
) -> PagedPass:
    """Index tensors for one pass.

    Args:
        sequences: each of another session.
        storage: where keys and values are.
        num_groups: G, the query heads per key head.
        windows: of each layer, None where a row sees all positions before it.
        tile_sizes: rows a tile may have, rising.
    """
    device = storage.device
    size = storage.block_size
    row_slots: list[int] = []
    first_rows: list[int] = []
    for sequence in sequences:
        first_rows.append(len(row_slots))
        blocks = sequence.table.block_ids
        stop = sequence.start + len(sequence.token_ids)
        row_slots.extend(blocks[p // size] * size + p % size for p in range(sequence.start, stop))
    places = [0] * len(row_slots)
    num_places = 0
    gathers: list[KeyGather] = []
    distinct = list(dict.fromkeys(windows))
    for tile_rows, members in _gather_groups(sequences, num_groups, tile_sizes):
        tiles = _Tiles(tile_rows)
        for i in members:
            tiles.add(first_rows[i], sequences[i], places, num_places)
        num_places += len(tiles.rows)
        tables = [sequences[i].table for i in members]
        blocks_read = [_num_blocks_read(sequences[i], size) for i in members]
        mask_plan = _MaskPlan(distinct, num_groups, storage.device)
        gathers.append(_plan_gather(tables, blocks_read, tiles, storage, mask_plan))
    is_in_order = num_places == len(places) and places == list(range(num_places))
    return PagedPass(
        storage=storage,
        row_slots=torch.tensor(row_slots, device=device),
        row_places=None if is_in_order else torch.tensor(places, device=device),
        gathers=gathers,
        windows=tuple(windows),
    )


def _gather_groups(
    sequences: Sequence[SequenceRows], num_groups: int, tile_sizes: Sequence[int]
) -> list[tuple[int, list[int]]]:
    """Tile size and members: one-tile sequences by tile and length, each longer one by itself."""
    groups: list[tuple[int, list[int]]] = []
    short = []
    for i, sequence in enumerate(sequences):
        count = len(sequence.token_ids)
        if count > TILE_ROWS:
            groups.append((TILE_ROWS, [i]))
        else:
            least = max(count, -(-_MIN_PRODUCT_ROWS // num_groups))
            tile_rows = next(size for size in tile_sizes if size >= least)
            short.append((tile_rows, _padded_keys(sequence.start + count), i))
    short.sort(reverse=True)
    longest, current = 0, 0
    for tile_rows, num_keys, i in short:
        is_near = longest <= 2 * num_keys or longest <= _FREELY_PADDED_KEYS
        if tile_rows == current and is_near:
            groups[-1][1].append(i)
        else:
            groups.append((tile_rows, [i]))
            longest, current = num_keys, tile_rows
    return groups


def _num_blocks_read(sequence: SequenceRows, block_size: int) -> int:
    """Blocks to the session's last row; those behind are reserved and may hold anything."""
    return -(-(sequence.start + len(sequence.token_ids)) // block_size)


def _padded_keys(num_keys: int) -> int:
    return -(-num_keys // KEY_CHUNK) * KEY_CHUNK


def _plan_gather(
    tables: list[Blocks],
    blocks_read: list[int],  # how many of each table
    tiles: _Tiles,
    storage: KVStorage,
    masks: _MaskPlan,
) -> KeyGather:
    num_keys = max(_padded_keys(last + 1) for _, last in tiles.ends)
    blocks_each = -(-num_keys // storage.block_size)
    padding = [storage.null_block] * blocks_each
    ids = [
        (table.block_ids[:num_blocks] + padding)[:blocks_each]
        for table, num_blocks in zip(tables, blocks_read, strict=True)
    ]
    first_block = ids[0][0]
    block_index = None
    if len(tables) > 1 or ids[0] != list(range(first_block, first_block + blocks_each)):
        heads = torch.arange(storage.num_heads, device=storage.device) * storage.num_blocks_padded
        block_ids = torch.tensor(ids, device=storage.device).flatten()
        block_index = (heads[:, None] + block_ids).flatten()
    tiles_together = len(tables) if len(tables) > 1 else 1
    batches = []
    for start in range(0, len(tiles.ends), tiles_together):
        ends = tiles.ends[start : start + tiles_together]
        num_keys_seen = _padded_keys(max(last for _, last in ends) + 1)
        made = masks.make(ends, tiles.size, num_keys_seen)
        batches.append(TileBatch(start, len(ends), num_keys_seen, made))
    return KeyGather(
        block_index=block_index,
        first_block=first_block,
        num_sequences=len(tables),
        num_keys=num_keys,
        tile_rows=tiles.size,
        row_index=torch.tensor(tiles.rows, device=storage.device),
        batches=batches,
    )
