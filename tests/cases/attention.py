"""Made-up sessions, and attention over them written out: what each way of attending must give."""

from __future__ import annotations

import pytest
import torch

from models.attention.features import AttentionFeatures
from models.kv.storage import KVSizes

HEADS, KEY_HEADS, HEAD_DIM = 4, 2, 16
DTYPES = [torch.float32, torch.bfloat16]
PLAIN = AttentionFeatures(scale=HEAD_DIM**-0.5)
SINKS = torch.tensor([-1.0, 0.5, 2.0, 4.0])
FEATURES = {
    "plain": PLAIN,
    "window": AttentionFeatures(PLAIN.scale, window=9),
    "window of one": AttentionFeatures(PLAIN.scale, window=1),
    "window of a chunk": AttentionFeatures(PLAIN.scale, window=64),
    "softcap": AttentionFeatures(PLAIN.scale, softcap=1.5),
    "sinks": AttentionFeatures(PLAIN.scale, sinks=SINKS),
    "scale": AttentionFeatures(0.6),
    "all": AttentionFeatures(0.6, window=70, softcap=2.0, sinks=SINKS),
}
each_feature = pytest.mark.parametrize("features", FEATURES.values(), ids=FEATURES)


def kv_sizes(dtype: torch.dtype, num_blocks: int, block_size: int) -> KVSizes:
    """Of one layer with these heads."""
    return KVSizes(
        num_layers=1,
        num_blocks=num_blocks,
        block_size=block_size,
        num_heads=KEY_HEADS,
        head_dim=HEAD_DIM,
        dtype=dtype,
        device=torch.device("cpu"),
    )


class Text:
    """The queries, keys and values of one made-up session."""

    def __init__(self, length: int, seed: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(seed)
        shapes = [(HEADS, length, HEAD_DIM)] + [(KEY_HEADS, length, HEAD_DIM)] * 2
        self.parts = [torch.randn(s, generator=generator).to(dtype) for s in shapes]

    def reference(self, features: AttentionFeatures = PLAIN) -> torch.Tensor:  # [length, H, D]
        query, key, value = (part.double() for part in self.parts)
        group = HEADS // KEY_HEADS
        scores = query @ key.repeat_interleave(group, 0).transpose(1, 2) * features.scale
        if features.softcap is not None:
            scores = features.softcap * torch.tanh(scores / features.softcap)
        positions = torch.arange(scores.shape[1])
        distance = positions[:, None] - positions
        window = features.window or len(positions)
        scores.masked_fill_((distance < 0) | (distance >= window), float("-inf"))
        sinks = features.sinks
        if sinks is not None:
            sink = sinks.double()[:, None, None].expand(-1, len(positions), 1)
            scores = torch.cat((scores, sink), -1)
        weights = scores.softmax(-1)[..., : len(positions)]
        return (weights @ value.repeat_interleave(group, 0)).transpose(0, 1)
