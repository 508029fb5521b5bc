"""Attention of one pass by torch's own operations, on copies of the keys.

Every layer writes the rows' keys and values to their slots and attends in tiles of query rows. The
blocks of a pass are copied together, padded to one number of chunks per session. So products run
over all sessions at once. Windows, soft-capped scores, sinks and scales are the layer's
`AttentionFeatures`.

A row's result on a CPU is the same bits whatever else is in the pass. The weighted sum of values is
taken chunk by chunk. The library would split the sum of one product over all keys by their number,
which others determine. The number of rows in a tile does not matter from a few rows on
(`gather_plan` has the number). This was so on every CPU tried. If the start-up test finds
otherwise, all tiles have `TILE_ROWS` rows (`FIXED_TILES`), the last one repeated. A sink takes a
chunk of its own before the keys, so that they stay where the softmax has them.

Shape letters: R rows of the pass, H query heads, K key heads, G = H / K, D head size, S sessions
of one gather, t rows of a tile, M = G * t, J chunks of a session (padded), C tokens of a chunk,
L = J * C.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from models.attention.features import AttentionFeatures
from models.kv.storage import KVStorage

# A chunk of keys is a block of a multiple of so many tokens; smaller blocks are joined. So a
# softmax never ends within a vector of the CPU, and bfloat16 sums are not rounded too often.
KEY_CHUNK = 64


@dataclass(frozen=True, slots=True)
class TileBatch:
    """Query tiles that are computed together, one for each session of their gather."""

    first_tile: int  # within the gather
    num_tiles: int
    num_chunks: int  # J, at most that of the gather
    masks: dict[int | None, Tensor]  # by window: [tiles, t, L] float32, 0 or -inf


@dataclass(frozen=True, slots=True)
class KeyGather:
    """The keys of S sessions, padded to one number of chunks, and the tiles that look at them."""

    block_ids: Tensor  # [S * J * blocks of a chunk], the null block after a session's last
    blocks_per_chunk: int
    num_chunks: int  # J
    tile_rows: int  # t
    row_index: Tensor | None  # [tiles * t] row of the pass at each place; None: all, in order
    batches: list[TileBatch]


@dataclass(frozen=True, slots=True)
class GatherPass:
    """Implements `AttentionPass` with index tensors that `gather_plan` made."""

    storage: KVStorage
    row_slots: Tensor  # [K * R] where the storage puts each row's key and value
    row_places: Tensor | None  # [R] place of each row in all tiles; None: they are in order
    gathers: list[KeyGather]
    windows: tuple[int | None, ...]  # each layer's window
    shared: tuple[Tensor, Tensor] | None  # [n] rows that are stored once more; [K * n] where

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store the rows' keys and values [K, R, D]."""
        rows = torch.stack((key, value))
        self.storage.write(layer, self.row_slots, rows)
        if self.shared is not None:
            shared_rows, further = self.shared
            self.storage.write(layer, further, rows.index_select(2, shared_rows))

    def attend(self, layer: int, query: Tensor, features: AttentionFeatures) -> Tensor:
        """Attention of rows `query` [R, H, D] to the stored keys of their sessions, [R, H, D]."""
        keys, values = self.storage.blocks[layer]
        outs = [_attend_gather(query, gather, keys, values, features) for gather in self.gathers]
        out = outs[0] if len(outs) == 1 else torch.cat(outs)
        return out if self.row_places is None else out.index_select(0, self.row_places)


def _attend_gather(
    query: Tensor,  # [R, H, D]
    gather: KeyGather,
    keys: Tensor,  # [blocks, K, block_size, D]
    values: Tensor,
    features: AttentionFeatures,
) -> Tensor:  # [tiles * t, H, D]
    num_heads, num_key_heads = query.shape[1], keys.shape[1]
    num_groups, tile_rows = num_heads // num_key_heads, gather.tile_rows
    chunks = [_chunks(gather, blocks) for blocks in (keys, values)]
    rows = query if gather.row_index is None else query.index_select(0, gather.row_index)
    tiles = rows.view(-1, tile_rows, num_key_heads, num_groups, rows.shape[2])
    tiles = tiles.permute(0, 2, 3, 1, 4).flatten(2, 3)  # [tiles, K, M, D]
    outs = []
    for batch in gather.batches:
        some = tiles[batch.first_tile : batch.first_tile + batch.num_tiles]
        seen_keys, seen_values = (part[:, : batch.num_chunks] for part in chunks)
        outs.append(_attend_tiles(some, tile_rows, batch, seen_keys, seen_values, features))
    out = outs[0] if len(outs) == 1 else torch.cat(outs)
    out = out.view(-1, num_key_heads, num_groups, tile_rows, out.shape[3])
    return out.permute(0, 3, 1, 2, 4).reshape(-1, num_heads, out.shape[4])


def _chunks(gather: KeyGather, blocks: Tensor) -> Tensor:
    """Return the chunks of `blocks` [blocks, K, block_size, D] for the gather: [S, J, K, C, D]."""
    copied = blocks.index_select(0, gather.block_ids)
    joined = copied.unflatten(0, (-1, gather.num_chunks, gather.blocks_per_chunk))
    return joined.transpose(2, 3).flatten(3, 4)


def _attend_tiles(
    tiles: Tensor,  # [S, K, M, D]
    tile_rows: int,
    batch: TileBatch,
    keys: Tensor,  # [S, J, K, C, D]
    values: Tensor,
    features: AttentionFeatures,
) -> Tensor:  # [S, K, M, D]
    """Chunks that are hidden from a row add exact zeros to its sums."""
    query = tiles.unsqueeze(1).expand(-1, batch.num_chunks, -1, -1, -1)
    scores = _multiply(query, keys.transpose(3, 4))  # [S, J, K, M, C]
    by_group = scores.unflatten(3, (-1, tile_rows))
    weights = _weights(by_group, batch.masks[features.window], features)  # [S, J, K, G, t, C]
    weights = weights.to(tiles.dtype, memory_format=torch.contiguous_format).reshape(scores.shape)
    return _multiply(weights, values).sum(1)


def _multiply(left: Tensor, right: Tensor) -> Tensor:
    """Products of the last two dimensions: [S, J, K, M, x] and [S, J, K, x, y]."""
    out = torch.bmm(left.flatten(0, 2), right.flatten(0, 2))
    return out.view(*left.shape[:4], right.shape[4])


def _weights(
    scores: Tensor,  # [S, J, K, G, t, C], of the model's dtype
    mask: Tensor,  # [S, t, L] float32
    features: AttentionFeatures,
) -> Tensor:  # [S, J, K, G, t, C] float32, not contiguous
    """Return the weight of each key, from unscaled scores."""
    num_sequences, num_chunks, num_key_heads, _, tile_rows, size = scores.shape
    by_row = scores.permute(0, 2, 3, 4, 1, 5)  # [S, K, G, t, J, C]
    mask = mask.view(num_sequences, 1, 1, tile_rows, num_chunks, size)
    masked = mask.new_empty(by_row.shape)
    if features.softcap is None:
        torch.add(mask, by_row, alpha=features.scale, out=masked)
    else:
        capped = by_row.float().mul_(features.scale / features.softcap).tanh_()
        torch.add(mask, capped, alpha=features.softcap, out=masked)
    masked = masked.flatten(4)  # [S, K, G, t, L]
    if features.sinks is None:
        weights = torch.softmax(masked, dim=-1)
    else:
        with_sink = masked.new_full((*masked.shape[:4], KEY_CHUNK + masked.shape[4]), -torch.inf)
        with_sink[..., KEY_CHUNK:] = masked
        with_sink[..., 0] = features.sinks.float().view(num_key_heads, -1, 1)  # [K, G, 1]
        weights = torch.softmax(with_sink, dim=-1)[..., KEY_CHUNK:]
    by_chunk = weights.view(*weights.shape[:4], num_chunks, size)
    return by_chunk.permute(0, 4, 1, 2, 3, 5)
