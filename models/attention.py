"""Paged attention over a ragged batch, as an attention function of transformers.

`models/attention_plan.py` made the index tensors and masks of the pass. `paged_attention` uses
them in every layer: it writes the rows' keys and values to their slots, gathers each session's
keys, and attends in tiles of query rows. Windows, soft-capped scores, sinks and scales are the
layer's `AttentionFeatures`.

On a CPU a row's result is the same bits whatever else is in the pass. Keys are padded to whole
chunks of `KEY_CHUNK` and the weighted sum of values is taken chunk by chunk: with one product over
all keys the library would split the sum by their number, which others determine. A tile is always
full (its last row is repeated). How many rows it has does not matter where products of
`_MIN_PRODUCT_ROWS` rows and more keep the order of their sums, which was so on every CPU tried;
where the start-up test finds otherwise, all tiles have `TILE_ROWS` rows (`FIXED_TILES`). A sink
takes a chunk of its own in front of the keys, so that they stay where the softmax has them.

Shape letters: R rows of the pass, H query heads, K key heads, G = H / K, D head size, S sessions
in one gather, t rows of a tile, M = G * t, L padded keys, B blocks, C = KEY_CHUNK.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from models.attention_features import AttentionFeatures, window_of_layer
from models.attention_plan import KEY_CHUNK, KeyGather, PagedPass
from models.kv_storage import KVStorage
from models.varlen_attention import VarlenPass

ATTENTION_NAME = "outrider_paged"
# What some architectures hand to their attention that changes its result and is not built.
_UNKNOWN_ARGUMENTS = ("position_bias", "indices", "block_indices", "sinks")


def paged_attention(
    module: nn.Module,
    query: Tensor,  # [1, H, R, D]
    key: Tensor,  # [1, K, R, D]
    value: Tensor,  # [1, K, R, D]
    attention_mask: Tensor | None,
    *,
    scaling: float | None = None,
    paged: PagedPass | VarlenPass | None = None,
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
    paged.storage.write(layer, paged.row_slots, torch.stack((key[0], value[0])))
    return attend(layer, query[0].transpose(0, 1), paged, features).unsqueeze(0), None


def attend(
    layer: int, query: Tensor, paged: PagedPass | VarlenPass, features: AttentionFeatures
) -> Tensor:
    """Attention of rows `query` [R, H, D] to the stored keys of their sessions, [R, H, D]."""
    if isinstance(paged, VarlenPass):
        return paged.attend(layer, query, features)
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
            mask = batch.masks[features.window]
            out = attend_tiles(part, keys[:, :, :limit], values[:, :, :limit], mask, features)
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
    features: AttentionFeatures,
) -> Tensor:  # [K, S, M, D]
    """The CPU path. Chunks that are hidden from a row add exact zeros to its sums."""
    batch_shape = query.shape[:2]
    query, key = query.flatten(0, 1), key.flatten(0, 1)
    scores = _scores(query, key).unflatten(0, batch_shape)
    weights = _weights(scores, mask, features).to(value.dtype)
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


def _weights(
    scores: Tensor,  # [K, S, M, L], of the model's dtype
    mask: Tensor,  # [S, M, L] float32
    features: AttentionFeatures,
) -> Tensor:  # [K, S, M, L] float32
    """What each key counts, from unscaled scores."""
    if features.softcap is None:
        masked = torch.add(mask, scores, alpha=features.scale)
    else:
        capped = scores.float().mul_(features.scale / features.softcap).tanh_()
        masked = torch.add(mask, capped, alpha=features.softcap)
    if features.sinks is None:
        return torch.softmax(masked, dim=-1)
    num_keys, rows, chunk = masked.shape[3], masked.shape[2], masked.shape[:3]
    with_sink = masked.new_full((*chunk, KEY_CHUNK + num_keys), float("-inf"))
    with_sink[..., KEY_CHUNK:] = masked
    sinks = features.sinks.float().view(masked.shape[0], 1, -1, 1)  # [K, 1, G, 1]
    sinks = sinks.expand(-1, -1, -1, rows // sinks.shape[2]).flatten(2)  # [K, 1, M]
    with_sink[..., 0] = sinks
    return torch.softmax(with_sink, dim=-1)[..., KEY_CHUNK:]


def _attend_fused(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, features: AttentionFeatures
) -> Tensor:
    """The path of other devices, same arguments: torch's own fused attention where it can."""
    if not features.is_plain:
        scores = torch.matmul(query, key.transpose(2, 3))
        return torch.matmul(_weights(scores, mask, features).to(value.dtype), value)
    out = nn.functional.scaled_dot_product_attention(
        query.transpose(0, 1),
        key.transpose(0, 1),
        value.transpose(0, 1),
        attn_mask=mask.to(query.dtype).unsqueeze(1),
        scale=features.scale,
    )
    return out.transpose(0, 1)


AttentionInterface.register(ATTENTION_NAME, paged_attention)
