"""Paged attention over a ragged batch, as an attention function of transformers.

All rows of a pass lie on one flat axis. `plan_pass` turns the sessions of a pass into index
tensors once; `paged_attention` uses them in every layer: it writes the rows' keys and values to
their slots, gathers each session's keys, and attends in tiles of query rows.

On a CPU a row's result is the same bits whatever else is in the pass. Keys are padded to whole
chunks of `KEY_CHUNK` and the weighted sum of values is taken chunk by chunk: with one product over
all keys the library would split the sum by their number, which others determine. A tile is always
full (its last row is repeated). How many rows it has does not matter where products of
`_MIN_PRODUCT_ROWS` rows and more keep the order of their sums, which was so on every CPU tried;
where the start-up test finds otherwise, all tiles have `TILE_ROWS` rows (`FIXED_TILES`).

Shape letters: R rows of the pass, H query heads, K key heads, G = H / K, D head size, S sessions
in one gather, t rows of a tile, M = G * t, L padded keys, B blocks, C = KEY_CHUNK.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from models.kv_storage import KVStorage

ATTENTION_NAME = "outrider_paged"
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
    mask: Tensor  # [tiles, M, L] float32, 0 or -inf


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


def plan_pass(
    sequences: Sequence[SequenceRows],
    storage: KVStorage,
    num_groups: int,
    tile_sizes: Sequence[int] = FITTING_TILES,
) -> PagedPass:
    """Index tensors for one pass; `num_groups` is G, the query heads per key head."""
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
    for tile_rows, members in _gather_groups(sequences, num_groups, tile_sizes):
        tiles = _Tiles(tile_rows)
        for i in members:
            tiles.add(first_rows[i], sequences[i], places, num_places)
        num_places += len(tiles.rows)
        tables = [sequences[i].table for i in members]
        blocks_read = [_num_blocks_read(sequences[i], size) for i in members]
        gathers.append(_plan_gather(tables, blocks_read, tiles, storage, num_groups))
    is_in_order = num_places == len(places) and places == list(range(num_places))
    return PagedPass(
        storage=storage,
        row_slots=torch.tensor(row_slots, device=device),
        row_places=None if is_in_order else torch.tensor(places, device=device),
        gathers=gathers,
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
    num_groups: int,
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
        mask = _causal_mask(ends, tiles.size, num_groups, storage.device)
        batches.append(TileBatch(start, len(ends), mask.shape[-1], mask))
    return KeyGather(
        block_index=block_index,
        first_block=first_block,
        num_sequences=len(tables),
        num_keys=num_keys,
        tile_rows=tiles.size,
        row_index=torch.tensor(tiles.rows, device=storage.device),
        batches=batches,
    )


def _causal_mask(
    tile_ends: list[tuple[int, int]], tile_rows: int, num_groups: int, device: torch.device
) -> Tensor:
    """[tiles, M, L]: 0 where a key is at or before its row's position, else -inf."""
    firsts, lasts = torch.tensor(tile_ends, device=device).T
    num_keys = _padded_keys(max(last for _, last in tile_ends) + 1)
    positions = firsts[:, None] + torch.arange(tile_rows, device=device)
    positions = torch.minimum(positions, lasts[:, None])  # [tiles, t]
    is_hidden = torch.arange(num_keys, device=device) > positions[:, :, None]
    mask = torch.zeros(is_hidden.shape, device=device).masked_fill_(is_hidden, float("-inf"))
    return mask.repeat(1, num_groups, 1)


def paged_attention(
    module: nn.Module,
    query: Tensor,  # [1, H, R, D]
    key: Tensor,  # [1, K, R, D]
    value: Tensor,  # [1, K, R, D]
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    paged: PagedPass | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **ignored: object,
) -> tuple[Tensor, None]:  # [1, R, H, D]
    """Attention of every row to its own session's keys, which are stored on the way.

    Signature and return are those of transformers' AttentionInterface; `paged` comes through the
    keyword arguments of the model's forward.

    Raises:
        ValueError: the model wants soft-capped scores or attention sinks, or does not pass
            keyword arguments on to its attention layers.
    """
    if softcap is not None or s_aux is not None:
        raise ValueError(f"{type(module).__name__} uses soft-capping or sinks: not served")
    if paged is None:
        raise ValueError(f"{type(module).__name__} got no plan of the pass: not served")
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # a plain int on attention modules
    paged.storage.write(layer, paged.row_slots, torch.stack((key[0], value[0])))
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    return attend(layer, query[0].transpose(0, 1), paged, scale).unsqueeze(0), None


def attend(layer: int, query: Tensor, paged: PagedPass, scale: float) -> Tensor:
    """Attention of rows `query` [R, H, D] to the stored keys of their sessions, [R, H, D]."""
    storage = paged.storage
    _, num_heads, head_dim = query.shape
    num_groups = num_heads // storage.num_heads
    attend_tiles = _attend_in_chunks if query.device.type == "cpu" else _attend_fused
    outs = []
    for gather in paged.gathers:
        keys, values = (_gather(part, gather, storage) for part in storage.blocks[layer])
        rows = query.index_select(0, gather.row_index)
        # [tiles * t, H, D] -> [K, tiles, G, t, D] -> [K, tiles, M, D]
        tiles = rows.view(-1, gather.tile_rows, storage.num_heads, num_groups, head_dim)
        tiles = tiles.permute(2, 0, 3, 1, 4).flatten(2, 3)
        for batch in gather.batches:
            part = tiles[:, batch.first_tile : batch.first_tile + batch.num_tiles]
            limit = batch.num_keys
            out = attend_tiles(part, keys[:, :, :limit], values[:, :, :limit], batch.mask, scale)
            # [K, tiles, M, D] -> [tiles, t, K, G, D]
            out = out.unflatten(2, (num_groups, gather.tile_rows)).permute(1, 3, 0, 2, 4)
            outs.append(out.reshape(-1, num_heads, head_dim))
    out = outs[0] if len(outs) == 1 else torch.cat(outs)
    return out if paged.row_places is None else out.index_select(0, paged.row_places)


def _gather(blocks: Tensor, gather: KeyGather, storage: KVStorage) -> Tensor:
    """Keys or values of one layer, [K, S, L or a little more, D]."""
    if gather.block_index is None:
        heads = blocks.view(storage.num_heads, storage.num_blocks_padded, -1)
        num_blocks = -(-gather.num_keys // storage.block_size)
        rows = heads.narrow(1, gather.first_block, num_blocks)
        return rows.unflatten(2, (storage.block_size, -1)).flatten(1, 2).unsqueeze(1)
    rows = blocks.index_select(0, gather.block_index)
    return rows.view(
        storage.num_heads, gather.num_sequences, -1, blocks.shape[1] // storage.block_size
    )


def _attend_in_chunks(
    query: Tensor,  # [K, S, M, D]
    key: Tensor,  # [K, S, L, D]
    value: Tensor,  # [K, S, L, D]
    mask: Tensor,  # [S, M, L] float32
    scale: float,
) -> Tensor:  # [K, S, M, D]
    """The CPU path. Chunks that are hidden from a row add exact zeros to its sums."""
    batch_shape = query.shape[:2]
    query, key = query.flatten(0, 1), key.flatten(0, 1)
    scores = _scores(query, key).unflatten(0, batch_shape)
    weights = torch.softmax(torch.add(mask, scores, alpha=scale), dim=-1).to(value.dtype)
    num_chunks = value.shape[2] // KEY_CHUNK
    weights = weights.flatten(0, 1).unflatten(2, (num_chunks, KEY_CHUNK))
    weights = weights.transpose(1, 2).flatten(0, 1)  # [K * S * chunks, M, C]
    value = value.unflatten(2, (num_chunks, KEY_CHUNK)).flatten(0, 2)
    out = torch.bmm(weights, value)
    if num_chunks == 1:
        return out.unflatten(0, batch_shape)
    return out.unflatten(0, (*batch_shape, num_chunks)).sum(2)


def _scores(query: Tensor, key: Tensor) -> Tensor:  # [N, M, D], [N, L, D] -> [N, M, L]
    """Products of all queries and keys.

    In bfloat16 the second operand of a product is laid out anew; with the queries there instead of
    the keys, which are many more, it takes a third of the time and gives the same bits.
    """
    if query.dtype == torch.float32:
        return torch.bmm(query, key.transpose(1, 2))
    return torch.bmm(key, query.transpose(1, 2)).transpose(1, 2)


def _attend_fused(query: Tensor, key: Tensor, value: Tensor, mask: Tensor, scale: float) -> Tensor:
    """The path of other devices: torch's own fused attention, same arguments."""
    out = nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1),
        key.transpose(0, 1),
        value.transpose(0, 1),
        attn_mask=mask.to(query.dtype).unsqueeze(1),
        scale=scale,
    )
    return out.transpose(0, 1)


AttentionInterface.register(ATTENTION_NAME, paged_attention)
