"""Index tensors of one ragged pass: which keys each tile of query rows reads, and which it sees.

They serve attention by torch's own operations. Compiled kernels have their own (`cpu/batch.py`,
`gpu/indices.py`). All rows of a pass lie on one flat axis. `plan_pass` turns the sessions of a pass
into tensors once; `gather_pass` uses them in every layer. Each distinct window of the model's
layers has its own masks, made here. A window that hides nothing from a tile shares the causal mask.

Shape letters: R rows of the pass, H query heads, K key heads, G = H / K, S sessions in one gather,
t rows of a tile, M = G * t, J chunks of keys (padded), C tokens of a chunk, L = J * C keys.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from models.attention.gather_pass import KEY_CHUNK, GatherPass, KeyGather, TileBatch
from models.device import to_device
from models.kv.rows import SequenceRows, further_slots
from models.kv.storage import KVStorage

TILE_ROWS = 16  # rows of the largest tile that sessions share
_LONG_TILE_ROWS = 64  # times G, in a tile of one session by itself; larger products gain little
# Sessions with up to so many rows share tiles of as many rows as the longest of them has; one with
# more has tiles for itself, as even as can be.
FITTING_TILES = (1, 2, 4, 8, TILE_ROWS)
FIXED_TILES = (TILE_ROWS,)  # all have so many
_MIN_FLOAT32_ROWS = 4  # products of fewer rows sum in another order
_SMALL_PRODUCT = 16**3  # multiplications; up to so many torch leaves to another bfloat16 kernel
# Sessions share one gather unless the shorter one would more than double its keys.
_FREELY_PADDED_KEYS = 4 * KEY_CHUNK


@dataclass(slots=True)
class _Tiles:
    """The tiles of one gather while they are laid out."""

    size: int  # t
    rows: list[int] = field(default_factory=list)  # rows of the pass, at each place
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
    device: torch.device

    def make(
        self, tile_ends: list[tuple[int, int]], tile_rows: int, num_keys: int
    ) -> dict[int | None, Tensor]:
        """Return for each window a mask [tiles, t, L]: 0 if a row sees a key, else -inf."""
        firsts, lasts = to_device(tile_ends, self.device).T
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
        return mask.masked_fill_(is_hidden, float("-inf"))


def plan_pass(
    sequences: Sequence[SequenceRows],
    storage: KVStorage,
    num_groups: int,
    windows: Sequence[int | None],
    tile_sizes: Sequence[int] = FITTING_TILES,
) -> GatherPass:
    """Index tensors for one pass.

    Args:
        sequences: each of another session.
        storage: where keys and values are.
        num_groups: G, the query heads per key head.
        windows: of each layer, None where a row sees all positions before it.
        tile_sizes: rows a tile may have, rising.
    """
    size = storage.block_size
    row_slots: list[int] = []
    first_rows: list[int] = []
    for sequence in sequences:
        first_rows.append(len(row_slots))
        stop = sequence.start + len(sequence.token_ids)
        row_slots += sequence.slots(sequence.start, stop, size)
    min_rows = -(-_min_product_rows(storage) // num_groups)
    most_rows = max(TILE_ROWS, _LONG_TILE_ROWS // num_groups)
    masks = _MaskPlan(list(dict.fromkeys(windows)), storage.device)
    places = [0] * len(row_slots)
    num_places = 0
    gathers: list[KeyGather] = []
    for tile_rows, members in _gather_groups(sequences, min_rows, most_rows, tile_sizes):
        tiles = _Tiles(tile_rows)
        for i in members:
            tiles.add(first_rows[i], sequences[i], places, num_places)
        num_places += len(tiles.rows)
        tables = [
            sequences[i].table.block_ids[: sequences[i].num_blocks_read(size)] for i in members
        ]
        gathers.append(_plan_gather(tables, tiles, storage, masks, len(row_slots)))
    is_in_order = places == list(range(num_places))
    return GatherPass(
        storage=storage,
        row_slots=storage.row_index(row_slots),
        row_places=None if is_in_order else to_device(places, storage.device),
        gathers=gathers,
        windows=tuple(windows),
        shared=_shared(sequences, storage),
    )


def _shared(sequences: Sequence[SequenceRows], storage: KVStorage) -> tuple[Tensor, Tensor] | None:
    rows, slots = further_slots(sequences, storage.block_size)
    return (to_device(rows, storage.device), storage.row_index(slots)) if rows else None


def _gather_groups(
    sequences: Sequence[SequenceRows], min_rows: int, most_rows: int, tile_sizes: Sequence[int]
) -> list[tuple[int, list[int]]]:
    """Tile size and members: one-tile sequences by tile and length, each longer one by itself."""
    groups: list[tuple[int, list[int]]] = []
    short = []
    for i, sequence in enumerate(sequences):
        count = len(sequence.token_ids)
        if count > TILE_ROWS:
            groups.append((TILE_ROWS, [i]))
        else:
            limit = next(size for size in tile_sizes if size >= max(count, min_rows))
            short.append((limit, _padded_keys(sequence.start + count), i))
    short.sort(reverse=True)
    longest, current = 0, 0
    for limit, num_keys, i in short:
        is_near = longest <= 2 * num_keys or longest <= _FREELY_PADDED_KEYS
        if limit == current and is_near:
            groups[-1][1].append(i)
        else:
            groups.append((limit, [i]))
            longest, current = num_keys, limit
    return [
        (_tile_rows(limit, members, sequences, min_rows, most_rows, tile_sizes), sorted(members))
        for limit, members in groups
    ]


def _tile_rows(
    limit: int,
    members: list[int],
    sequences: Sequence[SequenceRows],
    min_rows: int,
    most_rows: int,
    tile_sizes: Sequence[int],
) -> int:
    """Rows of the tiles of sequences that share tiles of at most `limit`, or of a longer one."""
    if len(tile_sizes) == 1:
        return limit
    count = max(len(sequences[i].token_ids) for i in members)
    if count > TILE_ROWS:
        num_tiles = -(-count // most_rows)
        return -(-count // num_tiles)
    return min(limit, max(min_rows, count))


def _min_product_rows(storage: KVStorage) -> int:
    """M from which on a row of a product is the same bits whatever M is."""
    if storage.dtype == torch.float32:
        return _MIN_FLOAT32_ROWS
    one_row = storage.num_heads * storage.head_dim * _chunk_tokens(storage)
    return min(_SMALL_PRODUCT // one_row + 1, TILE_ROWS)


def _chunk_tokens(storage: KVStorage) -> int:
    return math.lcm(KEY_CHUNK, storage.block_size)


def _padded_keys(num_keys: int) -> int:
    return -(-num_keys // KEY_CHUNK) * KEY_CHUNK


def _plan_gather(
    tables: list[list[int]], tiles: _Tiles, storage: KVStorage, masks: _MaskPlan, num_rows: int
) -> KeyGather:
    device = storage.device
    chunk = _chunk_tokens(storage)
    blocks_per_chunk = chunk // storage.block_size
    num_chunks = max(last // chunk + 1 for _, last in tiles.ends)
    tiles_together = len(tables) if len(tables) > 1 else 1
    batches = []
    for start in range(0, len(tiles.ends), tiles_together):
        ends = tiles.ends[start : start + tiles_together]
        num_seen = max(last // chunk + 1 for _, last in ends)
        made = masks.make(ends, tiles.size, num_seen * chunk)
        batches.append(TileBatch(start, len(ends), num_seen, made))
    num_blocks = num_chunks * blocks_per_chunk
    padding = [storage.null_block] * num_blocks
    is_all = tiles.rows == list(range(num_rows))
    return KeyGather(
        block_ids=to_device([(table + padding)[:num_blocks] for table in tables], device).flatten(),
        blocks_per_chunk=blocks_per_chunk,
        num_chunks=num_chunks,
        tile_rows=tiles.size,
        row_index=None if is_all else to_device(tiles.rows, device),
        batches=batches,
    )
