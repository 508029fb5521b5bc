from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from models.attention import paged_attention
from models.attention_plan import KEY_CHUNK, TILE_ROWS, SequenceRows, plan_pass
from models.kv_cache import BlockPool
from models.kv_storage import KVStorage

HEADS, KEY_HEADS, HEAD_DIM = 4, 2, 16
DTYPES = [torch.float32, torch.bfloat16]


class Text:
    """The queries, keys and values of one made-up session."""

    def __init__(self, length: int, seed: int, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(seed)
        shapes = [(HEADS, length, HEAD_DIM)] + [(KEY_HEADS, length, HEAD_DIM)] * 2
        self.parts = [torch.randn(s, generator=generator).to(dtype) for s in shapes]

    def reference(self) -> torch.Tensor:  # [length, H, D]
        query, key, value = (part.double() for part in self.parts)
        group = HEADS // KEY_HEADS
        out = nn.functional.scaled_dot_product_attention(
            query,
            key.repeat_interleave(group, 0),
            value.repeat_interleave(group, 0),
            is_causal=True,
        )
        return out.transpose(0, 1)


class Bench:
    """Storage, pool and one layer, without a model."""

    def __init__(self, dtype: torch.dtype, num_blocks: int = 128, block_size: int = 16) -> None:
        self.pool = BlockPool(num_blocks, block_size)
        self.storage = KVStorage(
            num_layers=1,
            num_blocks=num_blocks,
            block_size=block_size,
            num_heads=KEY_HEADS,
            head_dim=HEAD_DIM,
            dtype=dtype,
            device=torch.device("cpu"),
        )

    def run(self, rows: list[tuple[Text, object, int, int]]) -> list[torch.Tensor]:
        """Rows (text, table, start, stop) in one pass; the outputs of each."""
        sequences = [
            SequenceRows(table, start, [0] * (stop - start), 0) for _, table, start, stop in rows
        ]
        for sequence in sequences:
            sequence.table.resize(sequence.start + len(sequence.token_ids))
        plan = plan_pass(sequences, self.storage, HEADS // KEY_HEADS, [None])
        query, key, value = (
            torch.cat([text.parts[i][:, start:stop] for text, _, start, stop in rows], 1)[None]
            for i in range(3)
        )
        module = SimpleNamespace(layer_idx=0)
        out, _ = paged_attention(module, query, key, value, None, paged=plan)
        return list(out[0].split([stop - start for *_, start, stop in rows]))


@pytest.mark.parametrize("block_size", [1, 16, 48])
def test_equals_plain_attention(block_size):
    bench = Bench(torch.float32, num_blocks=1024 // block_size, block_size=block_size)
    texts = [Text(length, seed, torch.float32) for seed, length in enumerate((1, 16, 17, 130))]
    tables = [bench.pool.new_table() for _ in texts]
    lengths = [text.parts[0].shape[1] for text in texts]
    outs = bench.run([(x, t, 0, n) for x, t, n in zip(texts, tables, lengths, strict=True)])
    for text, out in zip(texts, outs, strict=True):
        torch.testing.assert_close(out.double(), text.reference(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("length", [1, TILE_ROWS, KEY_CHUNK, KEY_CHUNK + 1, 200, 520])
def test_same_bits_for_rows_chunks_whole_and_strangers(dtype, length):
    bench = Bench(dtype)
    text, long, short = Text(length, 0, dtype), Text(700, 1, dtype), Text(3, 2, dtype)
    table, long_table, short_table = (bench.pool.new_table() for _ in range(3))
    (whole,) = bench.run([(text, table, 0, length)])
    bench.run([(long, long_table, 0, 699), (short, short_table, 0, 2)])
    for count in (1, 2, 6, 9, 37, 128):
        for start in {max(0, length - count), max(0, length - count - 70)}:
            stop = min(length, start + count)
            (alone,) = bench.run([(text, table, start, stop)])
            assert torch.equal(alone, whole[start:stop]), (count, start)
            among = [
                (long, long_table, 699, 700),
                (text, table, start, stop),
                (short, short_table, 2, 3),
            ]
            assert torch.equal(bench.run(among)[1], whole[start:stop]), (count, start)


def test_what_a_block_held_before_does_not_matter():
    bench = Bench(torch.float32, num_blocks=8)
    text = Text(20, 0, torch.float32)
    table = bench.pool.new_table()
    (clean,) = bench.run([(text, table, 0, 20)])
    for part in bench.storage.slots[0]:
        part[:, :-16] = float("nan")
    bench.storage.clear_blocks(list(range(8)))
    (again,) = bench.run([(text, table, 0, 20)])
    assert torch.equal(again, clean)


@pytest.mark.parametrize("feature", ["softcap", "s_aux"])
def test_unsupported_scores_are_refused(feature):
    module = SimpleNamespace(layer_idx=0)
    tensor = torch.zeros(1, 1, 1, 1)
    with pytest.raises(ValueError, match="not served"):
        paged_attention(module, tensor, tensor, tensor, None, **{feature: tensor})


def test_a_model_that_drops_keyword_arguments_is_refused():
    tensor = torch.zeros(1, 1, 1, 1)
    with pytest.raises(ValueError, match="no plan of the pass"):
        paged_attention(SimpleNamespace(layer_idx=0), tensor, tensor, tensor, None)
