"""Paged attention over a ragged batch, as an attention function of transformers.

All rows of a pass lie on one flat axis. `plan_pass` turns the sessions of a pass into index
tensors once; `paged_attention` uses them in every layer: it writes the rows' keys and values to
their slots, gathers each session's keys, and attends in tiles of `TILE_ROWS` query rows.

On a CPU a row's result is the same bits whatever else is in the pass, because every matrix
product has a fixed shape: a tile is always full (its last row is repeated), keys are padded to
whole chunks of `KEY_CHUNK`, and the weighted sum of values is taken chunk by chunk. (With one
product over all keys the library splits the sum by the number of keys, which others determine.)

Shape letters: R rows of the pass, H query heads, K key heads, G = H / K, D head size, S sessions
in one gather, M = G * TILE_ROWS, L padded keys, B blocks, C = KEY_CHUNK.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

ATTENTION_NAME = "outrider_paged"
TILE_ROWS = 16
KEY_CHUNK = 64
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


class KVStorage:
    """Keys and values of all layers, in blocks. One block more than the pool: it stays zero.

    Args:
        num_layers: attention layers.
        num_blocks: blocks of the pool.
        block_size: tokens per block.
        num_heads: key heads.
        head_dim: size of a head.
        dtype: of keys and values.
        device: where they live.
    """

    def __init__(
        self,
        *,
        num_layers: int,
        num_blocks: int,
        block_size: int,
        num_heads: int,
        head_dim: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self.block_size = block_size
        self.num_heads = num_heads
        self.num_blocks_padded = num_blocks + 1
        self.null_block = num_blocks
        shape = (num_layers, 2, num_heads, self.num_blocks_padded, block_size, head_dim)
        self._blocks = torch.zeros(shape, dtype=dtype, device=device)
        slots = self._blocks.flatten(3, 4)  # [layers, 2, K, slots, D]
        whole = self._blocks.flatten(4, 5).flatten(2, 3)  # [layers, 2, K * B, block_size * D]
        self.slots = [(layer[0], layer[1]) for layer in slots]
        self.blocks = [(layer[0], layer[1]) for layer in whole]

    @property
    def device(self) -> torch.device:
        """Where keys and values live."""
        return self._blocks.device

    @property
    def num_bytes(self) -> int:
        """Memory of all keys and values."""
        return self._blocks.nbytes

    def clear_blocks(self, block_ids: list[int]) -> None:
        """Zero blocks that a session enters, so that no NaN of a former owner stays behind."""
        index = torch.tensor(block_ids, device=self.device)
        self._blocks.index_fill_(3, index, 0)


@dataclass(frozen=True, slots=True)
class TileBatch:
    """Query tiles that are computed together, one for each session of their gather."""

    first_tile: int
    num_tiles: int
    num_keys: int  # L, at most that of the gather
    mask: Tensor  # [tiles, M, L] float32, 0 or -inf


@dataclass(frozen=True, slots=True)
class KeyGather:
    """Keys of S sessions, padded to one length, and the tiles that look at them."""

    block_index: Tensor  # [K * S * blocks] into KVStorage.blocks
    num_sequences: int
    num_keys: int  # L
    batches: list[TileBatch]


@dataclass(frozen=True, slots=True)
class PagedPass:
    """Everything the attention layers need to know about one pass."""

    storage: KVStorage
    row_slots: Tensor  # [R] slot of each row's key and value
    tile_rows: Tensor  # [tiles * TILE_ROWS] row of each place in the tiles
    row_places: Tensor  # [R] place of each row in the tiles
    gathers: list[KeyGather]


def plan_pass(sequences: Sequence[SequenceRows], storage: KVStorage, num_groups: int) -> PagedPass:
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
    tile_rows: list[int] = []
    row_places = [0] * len(row_slots)
    gathers: list[KeyGather] = []
    for members in _gather_groups(sequences):
        first_tile = len(tile_rows) // TILE_ROWS
        tile_ends: list[tuple[int, int]] = []  # (first position, last position) of each tile
        for i in members:
            count = len(sequences[i].token_ids)
            for offset in range(0, count, TILE_ROWS):
                last = min(offset + TILE_ROWS, count) - 1
                tile_ends.append((sequences[i].start + offset, sequences[i].start + last))
                for place in range(TILE_ROWS):
                    row = first_rows[i] + min(offset + place, last)
                    if offset + place <= last:
                        row_places[row] = len(tile_rows)
                    tile_rows.append(row)
        tables = [sequences[i].table for i in members]
        gathers.append(_plan_gather(tables, tile_ends, first_tile, storage, num_groups))
    return PagedPass(
        storage=storage,
        row_slots=torch.tensor(row_slots, device=device),
        tile_rows=torch.tensor(tile_rows, device=device),
        row_places=torch.tensor(row_places, device=device),
        gathers=gathers,
    )


def _gather_groups(sequences: Sequence[SequenceRows]) -> list[list[int]]:
    """Sequences of one tile by similar length; each longer one (a prompt) by itself."""
    groups: list[list[int]] = []
    short = []
    for i, sequence in enumerate(sequences):
        if len(sequence.token_ids) > TILE_ROWS:
            groups.append([i])
        else:
            short.append((_padded_keys(sequence.start + len(sequence.token_ids)), i))
    short.sort(reverse=True)
    longest = 0
    for num_keys, i in short:
        if longest and (longest <= 2 * num_keys or longest <= _FREELY_PADDED_KEYS):
            groups[-1].append(i)
        else:
            groups.append([i])
            longest = num_keys
    return groups


def _padded_keys(num_keys: int) -> int:
    return -(-num_keys // KEY_CHUNK) * KEY_CHUNK


def _plan_gather(
    tables: list[Blocks],
    tile_ends: list[tuple[int, int]],
    first_tile: int,
    storage: KVStorage,
    num_groups: int,
) -> KeyGather:
    num_keys = max(_padded_keys(last + 1) for _, last in tile_ends)
    blocks_each = -(-num_keys // storage.block_size)
    padding = [storage.null_block] * blocks_each
    ids = [(table.block_ids + padding)[:blocks_each] for table in tables]
    heads = torch.arange(storage.num_heads, device=storage.device) * storage.num_blocks_padded
    block_ids = torch.tensor(ids, device=storage.device).flatten()
    tiles_together = len(tables) if len(tables) > 1 else 1
    batches = []
    for start in range(0, len(tile_ends), tiles_together):
        ends = tile_ends[start : start + tiles_together]
        mask = _causal_mask(ends, num_groups, storage.device)
        batches.append(TileBatch(first_tile + start, len(ends), mask.shape[-1], mask))
    return KeyGather((heads[:, None] + block_ids).flatten(), len(tables), num_keys, batches)


def _causal_mask(tile_ends: list[tuple[int, int]], num_groups: int, device: torch.device) -> Tensor:
    """[tiles, M, L]: 0 where a key is at or before its row's position, else -inf."""
    firsts, lasts = torch.tensor(tile_ends, device=device).T
    num_keys = _padded_keys(max(last for _, last in tile_ends) + 1)
    positions = firsts[:, None] + torch.arange(TILE_ROWS, device=device)
    positions = torch.minimum(positions, lasts[:, None])  # [tiles, TILE_ROWS]
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
    storage = paged.storage
    key_slots, value_slots = storage.slots[layer]
    key_slots.index_copy_(1, paged.row_slots, key[0])
    value_slots.index_copy_(1, paged.row_slots, value[0])

    _, num_heads, _, head_dim = query.shape
    num_key_heads = key.shape[1]
    scale = head_dim**-0.5 if scaling is None else scaling
    # [K, tiles, M, D]
    tiles = query[0].index_select(1, paged.tile_rows)
    tiles = tiles.view(num_key_heads, num_heads // num_key_heads, -1, TILE_ROWS, head_dim)
    tiles = tiles.transpose(1, 2).flatten(2, 3)
    attend = _attend_fixed_shapes if query.device.type == "cpu" else _attend_fused
    outs = []
    for gather in paged.gathers:
        keys, values = (
            _gather(part, gather, num_key_heads, head_dim) for part in storage.blocks[layer]
        )
        for batch in gather.batches:
            part = tiles[:, batch.first_tile : batch.first_tile + batch.num_tiles]
            limit = batch.num_keys
            outs.append(attend(part, keys[:, :, :limit], values[:, :, :limit], batch.mask, scale))
    out = outs[0] if len(outs) == 1 else torch.cat(outs, dim=1)
    # [K, tiles, G, TILE_ROWS, D] -> [tiles, TILE_ROWS, K, G, D]
    out = out.unflatten(2, (-1, TILE_ROWS)).permute(1, 3, 0, 2, 4)
    out = out.reshape(-1, num_heads, head_dim).index_select(0, paged.row_places)
    return out.unsqueeze(0), None


def _gather(blocks: Tensor, gather: KeyGather, num_key_heads: int, head_dim: int) -> Tensor:
    """Keys or values of one layer, [K, S, L or a little more, D]."""
    rows = blocks.index_select(0, gather.block_index)
    return rows.view(num_key_heads, gather.num_sequences, -1, head_dim)


def _attend_fixed_shapes(
    query: Tensor,  # [K, S, M, D]
    key: Tensor,  # [K, S, L, D]
    value: Tensor,  # [K, S, L, D]
    mask: Tensor,  # [S, M, L] float32
    scale: float,
) -> Tensor:  # [K, S, M, D]
    """The CPU path. Chunks that are hidden from a row add exact zeros to its sums."""
    batch_shape = query.shape[:2]
    query, key, value = (part.flatten(0, 1) for part in (query, key, value))
    scores = torch.bmm(query, key.transpose(1, 2)).unflatten(0, batch_shape)
    weights = torch.softmax(torch.add(mask, scores, alpha=scale), dim=-1).to(value.dtype)
    num_chunks = key.shape[1] // KEY_CHUNK
    weights = weights.flatten(0, 1).unflatten(2, (num_chunks, KEY_CHUNK))
    weights = weights.transpose(1, 2).flatten(0, 1)  # [K * S * chunks, M, C]
    value = value.unflatten(1, (num_chunks, KEY_CHUNK)).flatten(0, 1)
    out = torch.bmm(weights, value).unflatten(0, (*batch_shape, num_chunks))
    return out.sum(2)


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
