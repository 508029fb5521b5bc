"""Paged attention over a ragged batch, as an attention function of transformers.

`models/attention/gather_plan.py` made the index tensors and masks of the pass. `paged_attention`
uses them in every layer: it writes the rows' keys and values to their slots and attends in tiles of
query rows. Windows, soft-capped scores, sinks and scales are the layer's `AttentionFeatures`.

The blocks of a pass are copied together, padded to one number of chunks per session, so that
products run over all sessions at once. Where compiled kernels attend (`KernelPass`) nothing is
copied or padded; this is what serves elsewhere.

On a CPU a row's result is the same bits whatever else is in the pass. The weighted sum of values
is taken chunk by chunk: with one product over all keys the library would split the sum by their
number, which others determine. How many rows a tile has does not matter from a few rows on
(`gather_plan` says from how many), which was so on every CPU tried; where the start-up test
finds otherwise, all tiles have `TILE_ROWS` rows (`FIXED_TILES`), the last one repeated. A sink
takes a chunk of its own in front of the keys, so that they stay where the softmax has them.

Shape letters: R rows of the pass, H query heads, K key heads, G = H / K, D head size, S sessions
of one gather, t rows of a tile, M = G * t, J chunks of a session (padded), C tokens of a chunk,
L = J * C.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from models.attention.features import AttentionFeatures, window_of_layer
from models.attention.gather_plan import KEY_CHUNK, KeyGather, PagedPass, TileBatch
from models.kv.storage import KVBlocks

ATTENTION_NAME = "outrider_paged"
# What some architectures hand to their attention that changes its result and is not built.
_UNKNOWN_ARGUMENTS = ("position_bias", "indices", "block_indices", "sinks")


class KernelPass(Protocol):
    """A pass whose attention is a kernel's: `VarlenPass`, `CpuPass`."""

    @property
    def storage(self) -> KVBlocks:
        """Where keys and values are."""
        ...

    @property
    def windows(self) -> tuple[int | None, ...]:
        """Of each layer."""
        ...

    def store(self, layer: int, key: Tensor, value: Tensor) -> None:
        """Store the rows' keys and values [K, R, D]."""
        ...

    def attend(self, layer: int, query: Tensor, features: AttentionFeatures) -> Tensor:
        """Attention of rows `query` [R, H, D] to the stored keys of their sessions, [R, H, D]."""
        ...


def paged_attention(
    module: nn.Module,
    query: Tensor,  # [1, H, R, D]
    key: Tensor,  # [1, K, R, D]
    value: Tensor,  # [1, K, R, D]
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    paged: PagedPass | KernelPass | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    sliding_window: int | None = None,
    **others: object,
) -> tuple[Tensor, None]:  # [1, R, H, D]
    """Attention of every row to its own session's keys, which are stored on the way.

    Signature and return are those of transformers' AttentionInterface; `paged` comes through the
    keyword arguments of the model's forward.

    Raises:
        ValueError: the layer wants something of its attention that is not built, or another window
            than its config says, or the model does not pass keyword arguments on to its layers.
    """
    name = type(module).__name__
    if paged is None:
        raise ValueError(f"{name} got no plan of the pass: not served")
    unknown = [key for key in _UNKNOWN_ARGUMENTS if others.get(key) is not None]
    if unknown or not getattr(module, "is_causal", True):
        raise ValueError(f"{name} uses {', '.join(unknown) or 'later positions'}: not served")
    head_shape = (paged.storage.num_heads, paged.storage.head_dim)
    if key.shape[1::2] != head_shape or value.shape[1::2] != head_shape:
        raise ValueError(f"{name} has other heads than its config says: not served")
    layer = int(module.layer_idx)  # type: ignore[arg-type]  # a plain int on attention modules
    features = AttentionFeatures(
        scale=query.shape[3] ** -0.5 if scaling is None else scaling,
        window=window_of_layer(module, layer, paged.windows, sliding_window),
        softcap=softcap,
        sinks=s_aux,
    )
    paged.store(layer, key[0], value[0])
    return attend(layer, query[0].transpose(0, 1), paged, features).unsqueeze(0), None


def attend(
    layer: int, query: Tensor, paged: PagedPass | KernelPass, features: AttentionFeatures
) -> Tensor:
    """Attention of rows `query` [R, H, D] to the stored keys of their sessions, [R, H, D]."""
    if not isinstance(paged, PagedPass):
        return paged.attend(layer, query, features)
    keys, values = paged.storage.blocks[layer]
    outs = [_attend_gather(query, gather, keys, values, features) for gather in paged.gathers]
    out = outs[0] if len(outs) == 1 else torch.cat(outs)
    return out if paged.row_places is None else out.index_select(0, paged.row_places)


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
    """The chunks of `blocks` [blocks, K, block_size, D] that the gather reads: [S, J, K, C, D]."""
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
    """What each key counts, from unscaled scores."""
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


AttentionInterface.register(ATTENTION_NAME, paged_attention)
