"""Made-up sessions, attention over them written out, and a bench for each way of attending."""

from __future__ import annotations

import random
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from models.attention.features import AttentionFeatures
from models.attention.gather_plan import plan_pass
from models.attention.interface import paged_attention
from models.cpu.batch import CpuPlanner, LaneStorage
from models.gpu.indices import exact_shape, index_pass, padded_shape, upload
from models.gpu.kernel import VarlenPass
from models.gpu.reference import reference_kernel
from models.kv.block_pool import BlockPool, BlockTable
from models.kv.pages import PageStorage
from models.kv.rows import SequenceRows
from models.kv.storage import KVSizes, KVStorage

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

    def reference(self, features: AttentionFeatures = PLAIN) -> Tensor:  # [length, H, D]
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


Rows = tuple[Text, BlockTable, int, int]  # start and stop
Pass = Sequence[SequenceRows]
Parts = tuple[Tensor, Tensor, Tensor]  # queries [H, R, D], keys and values [K, R, D]


class Bench:
    """Storage, pool and one layer, without a model."""

    storage: Any

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self.pool = BlockPool(num_blocks, block_size)

    def run(self, rows: Sequence[Rows], features: AttentionFeatures = PLAIN) -> list[Tensor]:
        """Store the rows' keys and attend, in one pass; the outputs of each session."""
        sequences = [
            SequenceRows(table, start, [0] * (stop - start), 0) for _, table, start, stop in rows
        ]
        for _, table, _, stop in rows:
            table.resize(stop)
        query, key, value = (
            torch.cat([text.parts[i][:, start:stop] for text, _, start, stop in rows], 1)
            for i in range(3)
        )
        out = self.attend(sequences, (query, key, value), features)
        return list(out.split([stop - start for *_, start, stop in rows]))

    def attend(self, sequences: Pass, parts: Parts, features: AttentionFeatures) -> Tensor:
        """Store keys and values, and attend by queries: [R, H, D]."""
        raise NotImplementedError

    def whole(self, texts: Sequence[Text]) -> list[Rows]:
        """Return all rows of texts, each of a new session."""
        return [(text, self.pool.new_table(), 0, text.parts[0].shape[1]) for text in texts]

    def spoil(self) -> None:
        """Leave in all blocks what is not a number."""
        for part in self.storage.blocks[0]:
            part.fill_(float("nan"))


class GatherBench(Bench):
    """Attends by torch's operations. An engine clears each block that a session enters."""

    def __init__(self, dtype: torch.dtype, num_blocks: int = 128, block_size: int = 16) -> None:
        super().__init__(num_blocks, block_size)
        self.storage = KVStorage(kv_sizes(dtype, num_blocks, block_size))

    def attend(self, sequences: Pass, parts: Parts, features: AttentionFeatures) -> Tensor:
        plan = plan_pass(sequences, self.storage, HEADS // KEY_HEADS, [features.window])
        module: Any = SimpleNamespace(layer_idx=0)
        query, key, value = (part[None] for part in parts)
        out, _ = paged_attention(
            module,
            query,
            key,
            value,
            None,
            paged=plan,
            scaling=features.scale,
            sliding_window=features.window,
            softcap=features.softcap,
            s_aux=features.sinks,
        )
        return out[0]

    def spoil(self) -> None:
        super().spoil()
        self.storage.clear_blocks(list(range(self.storage.null_block + 1)))


class LaneBench(Bench):
    """Attends by the compiled kernels of CPUs."""

    def __init__(
        self,
        dtype: torch.dtype,
        num_blocks: int = 128,
        block_size: int = 16,
        num_threads: int = 1,
    ) -> None:
        super().__init__(num_blocks, block_size)
        self.storage = LaneStorage(kv_sizes(dtype, num_blocks, block_size), HEADS, num_threads)
        self.plan = CpuPlanner(self.storage, [None])

    def attend(self, sequences: Pass, parts: Parts, features: AttentionFeatures) -> Tensor:
        query, key, value = parts
        made = self.plan(sequences)
        made.store(0, key, value)
        return made.attend(0, query.transpose(0, 1), features)


class PagedBench(Bench):
    """Attends by the reference for paged kernels, on pages that lie anywhere."""

    def __init__(
        self,
        dtype: torch.dtype,
        num_blocks: int = 128,
        block_size: int = 16,
        *,
        is_padded: bool = False,
    ) -> None:
        super().__init__(num_blocks, block_size)
        scattered = self.pool.allocate(num_blocks)
        random.Random(0).shuffle(scattered)
        self.pool.free(scattered)
        self.storage = PageStorage(kv_sizes(dtype, num_blocks, block_size))
        self.is_padded = is_padded

    def plan(self, sequences: Pass) -> VarlenPass:
        """Lay out a pass, with more rows and blocks than it needs if that is asked for."""
        shape = exact_shape(sequences, self.pool.block_size)
        if self.is_padded:
            shape = padded_shape(shape.num_rows + 5, shape.table_width + 3)
        arrays = index_pass(sequences, shape, self.pool.block_size, self.storage.null_block)
        return VarlenPass(
            self.storage,
            reference_kernel(),
            upload(arrays, shape, torch.device("cpu")),
            max_rows=max(len(each.token_ids) for each in sequences),
            max_keys=max(each.start + len(each.token_ids) for each in sequences),
        )

    def attend(self, sequences: Pass, parts: Parts, features: AttentionFeatures) -> Tensor:
        made = self.plan(sequences)
        num_rows = parts[0].shape[1]
        padding = (0, 0, 0, len(made.row_slots) - num_rows)
        query, key, value = (F.pad(part, padding) for part in parts)
        made.store(0, key, value)
        out = made.attend(0, query.transpose(0, 1), features)
        assert bool(out.isfinite().all())
        return out[:num_rows]
