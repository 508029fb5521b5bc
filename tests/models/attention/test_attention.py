from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from models.attention.features import AttentionFeatures
from models.attention.gather_pass import KEY_CHUNK
from models.attention.gather_plan import TILE_ROWS, plan_pass
from models.attention.interface import paged_attention
from models.kv.block_pool import BlockPool
from models.kv.rows import SequenceRows
from models.kv.storage import KVStorage
from tests.cases.attention import (
    DTYPES,
    FEATURES,
    HEAD_DIM,
    HEADS,
    KEY_HEADS,
    PLAIN,
    Text,
    each_feature,
    kv_sizes,
)


class Bench:
    """Storage, pool and one layer, without a model."""

    def __init__(self, dtype: torch.dtype, num_blocks: int = 128, block_size: int = 16) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.storage = KVStorage(kv_sizes(dtype, num_blocks, block_size))

    def run(
        self, rows: list[tuple[Text, object, int, int]], features: AttentionFeatures = PLAIN
    ) -> list[torch.Tensor]:
        """Rows (text, table, start, stop) in one pass; the outputs of each."""
        sequences = [
            SequenceRows(table, start, [0] * (stop - start), 0) for _, table, start, stop in rows
        ]
        for sequence in sequences:
            sequence.table.resize(sequence.start + len(sequence.token_ids))
        plan = plan_pass(sequences, self.storage, HEADS // KEY_HEADS, [features.window])
        query, key, value = (
            torch.cat([text.parts[i][:, start:stop] for text, _, start, stop in rows], 1)[None]
            for i in range(3)
        )
        module = SimpleNamespace(layer_idx=0)
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
        return list(out[0].split([stop - start for *_, start, stop in rows]))


@each_feature
@pytest.mark.parametrize("block_size", [1, 16, 48])
def test_equals_attention_written_out(block_size, features):
    bench = Bench(torch.float32, num_blocks=1024 // block_size, block_size=block_size)
    texts = [Text(length, seed, torch.float32) for seed, length in enumerate((1, 16, 17, 130))]
    tables = [bench.pool.new_table() for _ in texts]
    lengths = [text.parts[0].shape[1] for text in texts]
    rows = [(x, t, 0, n) for x, t, n in zip(texts, tables, lengths, strict=True)]
    outs = bench.run(rows, features)
    for text, out in zip(texts, outs, strict=True):
        torch.testing.assert_close(out.double(), text.reference(features), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [1, TILE_ROWS, KEY_CHUNK, KEY_CHUNK + 1, 200, 520])
@pytest.mark.parametrize("features", [PLAIN, FEATURES["all"]], ids=["plain", "all"])
def test_same_bits_for_rows_chunks_whole_and_strangers(dtype, length, features):
    bench = Bench(dtype)
    text, long, short = Text(length, 0, dtype), Text(700, 1, dtype), Text(3, 2, dtype)
    table, long_table, short_table = (bench.pool.new_table() for _ in range(3))
    (whole,) = bench.run([(text, table, 0, length)], features)
    bench.run([(long, long_table, 0, 699), (short, short_table, 0, 2)], features)
    for count in (1, 2, 6, 9, 37, 128):
        for start in {max(0, length - count), max(0, length - count - 70)}:
            stop = min(length, start + count)
            (alone,) = bench.run([(text, table, start, stop)], features)
            assert torch.equal(alone, whole[start:stop]), (count, start)
            among = [
                (long, long_table, 699, 700),
                (text, table, start, stop),
                (short, short_table, 2, 3),
            ]
            assert torch.equal(bench.run(among, features)[1], whole[start:stop]), (count, start)


def test_masks_do_not_grow_with_the_query_heads():
    bench = Bench(torch.float32)
    table = bench.pool.new_table()
    table.resize(300)
    rows = [SequenceRows(table, 200, [0] * 100, 0)]
    for num_groups in (1, 4):
        (gather,) = plan_pass(rows, bench.storage, num_groups, [9, None, 500]).gathers
        for batch in gather.batches:
            masks = batch.masks
            tile_rows = {1: 50, 4: 15}[num_groups]  # 100 rows in tiles of at most 64, or of 16
            assert masks[9].shape == (1, tile_rows, batch.num_chunks * KEY_CHUNK)
            assert masks[500] is masks[None]  # hides nothing


def test_what_a_block_held_before_does_not_matter():
    bench = Bench(torch.float32, num_blocks=8)
    text = Text(20, 0, torch.float32)
    table = bench.pool.new_table()
    (clean,) = bench.run([(text, table, 0, 20)])
    for part in bench.storage.blocks[0]:
        part[:-1] = float("nan")
    bench.storage.clear_blocks(list(range(8)))
    (again,) = bench.run([(text, table, 0, 20)])
    assert torch.equal(again, clean)


def _call(**arguments):
    storage = Bench(torch.float32).storage
    table = BlockPool(8, 16).new_table()
    table.resize(1)
    plan = plan_pass([SequenceRows(table, 0, [0], 0)], storage, 2, [4])
    query, key = torch.zeros(1, HEADS, 1, HEAD_DIM), torch.zeros(1, KEY_HEADS, 1, HEAD_DIM)
    module = SimpleNamespace(layer_idx=0, is_causal=arguments.pop("is_causal", True))
    called = {"key": key, "value": key, "paged": plan, "sliding_window": 4, **arguments}
    return paged_attention(module, query, attention_mask=None, **called)


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        ({"paged": None}, "got no plan of the pass"),
        ({"position_bias": torch.zeros(1)}, "uses position_bias"),
        ({"block_indices": torch.zeros(1)}, "uses block_indices"),
        ({"is_causal": False}, "uses later positions"),
        ({"sliding_window": 5}, "attends to a window of 5 tokens where .* config has 4"),
        ({"key": torch.zeros(1, KEY_HEADS, 1, 24)}, "has other heads than its config says"),
        ({"value": torch.zeros(1, KEY_HEADS, 1, 8)}, "has other heads than its config says"),
        ({"value": torch.zeros(1, HEADS, 1, HEAD_DIM)}, "has other heads than its config says"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_what_is_not_built_is_refused(arguments, complaint):
    _call()
    with pytest.raises(ValueError, match=f"SimpleNamespace.* {complaint}.*: not served"):
        _call(**arguments)
