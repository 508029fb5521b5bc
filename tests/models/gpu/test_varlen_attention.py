"""The paged path computes what the gathering path computes, from its own layout and indices."""

from __future__ import annotations

import random

import pytest
import torch

from models.attention.features import AttentionFeatures
from models.attention.gather_plan import plan_pass
from models.gpu.indices import exact_shape, index_pass, padded_shape, upload
from models.gpu.kernel import VarlenPass, add_sinks
from models.gpu.reference import reference_kernel, reference_varlen_attn
from models.kv.block_pool import BlockPool
from models.kv.pages import PageStorage
from models.kv.rows import SequenceRows
from models.kv.storage import KVSizes, KVStorage

HEADS, KEY_HEADS, HEAD_DIM, BLOCK_SIZE, NUM_BLOCKS = 4, 2, 16, 8, 64
SCALE = HEAD_DIM**-0.5
PLAIN = AttentionFeatures(SCALE)
SIZES = KVSizes(
    num_layers=2,
    num_blocks=NUM_BLOCKS,
    block_size=BLOCK_SIZE,
    num_heads=KEY_HEADS,
    head_dim=HEAD_DIM,
    dtype=torch.float32,
    device=torch.device("cpu"),
)


class Bench:
    """The same sessions in both storages; blocks of both come from one pool, scattered."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.pool = BlockPool(NUM_BLOCKS, BLOCK_SIZE)
        scattered = self.pool.allocate(NUM_BLOCKS)
        self.draw.shuffle(scattered)
        self.pool.free(scattered)
        self.heads, self.pages = KVStorage(SIZES), PageStorage(SIZES)
        for storage in (self.heads, self.pages):
            storage.clear_blocks(list(range(NUM_BLOCKS)))

    def randn(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=self.generator)

    def sequences(self, sizes: list[tuple[int, int]]) -> list[SequenceRows]:
        made = []
        for start, count in sizes:
            table = self.pool.new_table()
            table.resize(start + count)
            made.append(SequenceRows(table, start, [0] * count, count))
        return made

    def store_past(self, sequences: list[SequenceRows], layer: int) -> None:
        """Random keys and values before the first rows."""
        for sequence in sequences:
            if sequence.start:
                past = [SequenceRows(sequence.table, 0, [0] * sequence.start, 0)]
                self.write(past, layer)

    def write(self, sequences: list[SequenceRows], layer: int) -> None:
        plan = plan_pass(sequences, self.heads, HEADS // KEY_HEADS, (None, None))
        row_slots = self.varlen(sequences).row_slots
        rows = self.randn(2, KEY_HEADS, len(row_slots), HEAD_DIM)
        self.heads.write(layer, plan.row_slots, rows)
        self.pages.write(layer, row_slots, rows)

    def varlen(self, sequences: list[SequenceRows], pad_to: int | None = None) -> VarlenPass:
        shape = exact_shape(sequences, BLOCK_SIZE)
        if pad_to is not None:
            shape = padded_shape(pad_to, NUM_BLOCKS)
        arrays = index_pass(sequences, shape, BLOCK_SIZE, self.pages.null_block)
        return VarlenPass(
            self.pages,
            reference_kernel(),
            upload(arrays, shape, torch.device("cpu")),
            max_rows=max(len(s.token_ids) for s in sequences),
            max_keys=max(s.start + len(s.token_ids) for s in sequences),
        )


def random_sizes(draw: random.Random) -> list[tuple[int, int]]:
    starts = [draw.choice([0, draw.randint(1, 90)]) for _ in range(draw.randint(1, 4))]
    return [(start, draw.choice([1, 2, 6, draw.randint(1, 30)])) for start in starts]


@pytest.mark.parametrize("pad", [False, True], ids=["exact", "padded"])
@pytest.mark.parametrize("seed", range(8))
def test_equals_the_gathering_path(seed: int, pad: bool):
    bench = Bench(seed)
    sequences = bench.sequences(random_sizes(bench.draw))
    for layer in range(2):
        bench.store_past(sequences, layer)
        bench.write(sequences, layer)
    num_rows = sum(len(s.token_ids) for s in sequences)
    pad_to = num_rows + bench.draw.randint(0, 9) if pad else None
    varlen = bench.varlen(sequences, pad_to)
    plan = plan_pass(sequences, bench.heads, HEADS // KEY_HEADS, (None, None))
    for layer in range(2):
        query = bench.randn(len(varlen.row_slots), HEADS, HEAD_DIM)
        expected = plan.attend(layer, query[:num_rows], PLAIN)
        got = varlen.attend(layer, query, PLAIN)
        torch.testing.assert_close(got[:num_rows], expected, rtol=1e-5, atol=1e-5)
        assert bool(got.isfinite().all())


def test_a_wrong_block_table_is_noticed():
    bench = Bench(0)
    sequences = bench.sequences([(20, 2), (3, 1)])
    bench.store_past(sequences, 0)
    bench.write(sequences, 0)
    varlen = bench.varlen(sequences)
    query = bench.randn(3, HEADS, HEAD_DIM)
    right = varlen.attend(0, query, PLAIN)
    table = varlen.tensors.block_table
    table[0, :2] = table[0, :2].flip(0).clone()
    torch.testing.assert_close(varlen.attend(0, query, PLAIN)[:2], right[:2])  # order of keys
    table[0, 0] = table[1, 0]
    assert not torch.allclose(varlen.attend(0, query, PLAIN)[:2], right[:2], atol=1e-2)


def test_pages_hold_the_keys_of_their_blocks_alone():
    bench = Bench(3)
    sequences = bench.sequences([(0, 13)])
    bench.write(sequences, 1)
    blocks = sequences[0].table.block_ids
    keys, values = bench.pages.blocks[1]
    filled = [block for block in range(NUM_BLOCKS + 1) if bool(keys[block].any())]
    assert filled == sorted(blocks)
    assert not bool(bench.pages.blocks[0][0].any())
    bench.pages.clear_blocks(blocks[:1])
    assert not bool(keys[blocks[0]].any())
    assert not bool(values[blocks[0]].any())
    assert bool(keys[blocks[1]].any())


def hidden_beyond(window: int, position: int, num_keys: int) -> torch.Tensor:
    keys = torch.arange(num_keys)
    return (keys > position) | (keys <= position - window)


@pytest.mark.parametrize("window", [1, 5, 1000])
def test_a_window_counts_the_row_itself(window: int):
    bench = Bench(1)
    sequences = bench.sequences([(17, 3)])
    bench.store_past(sequences, 0)
    bench.write(sequences, 0)
    query = bench.randn(3, HEADS, HEAD_DIM)
    got = bench.varlen(sequences).attend(0, query, AttentionFeatures(SCALE, window=window))
    keys, values = (
        part[sequences[0].table.block_ids]
        .transpose(0, 1)
        .flatten(1, 2)[:, :20]
        .repeat_interleave(2, 0)
        for part in bench.heads.blocks[0]
    )
    for row in range(3):
        scores = (keys @ query[row][:, :, None])[..., 0] * SCALE
        scores[:, hidden_beyond(window, 17 + row, 20)] = float("-inf")
        expected = (torch.softmax(scores, -1)[:, None] @ values)[:, 0]
        torch.testing.assert_close(got[row], expected, rtol=1e-5, atol=1e-5)


def test_sinks_by_the_log_sum_are_a_key_without_a_value():
    generator = torch.Generator().manual_seed(0)
    scores = 4 * torch.randn(HEADS, 5, 12, generator=generator)
    values = torch.randn(HEADS, 12, HEAD_DIM, generator=generator)
    sinks = torch.tensor([-30.0, 0.0, 3.0, 40.0])
    out = (torch.softmax(scores, -1) @ values).transpose(0, 1)
    with_sink = torch.cat([sinks[:, None, None].expand(-1, 5, 1), scores], dim=-1)
    expected = (torch.softmax(with_sink, -1)[..., 1:] @ values).transpose(0, 1)
    got = add_sinks(out, scores.logsumexp(-1), sinks)
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-6)


def test_sinks_of_a_pass_shrink_its_attention():
    bench = Bench(2)
    sequences = bench.sequences([(9, 2), (0, 4)])
    bench.store_past(sequences, 0)
    bench.write(sequences, 0)
    query = bench.randn(6, HEADS, HEAD_DIM)
    varlen = bench.varlen(sequences)
    plain = varlen.attend(0, query, PLAIN)
    none = varlen.attend(0, query, AttentionFeatures(SCALE, sinks=torch.full((HEADS,), -1e4)))
    torch.testing.assert_close(none, plain)
    some = varlen.attend(0, query, AttentionFeatures(SCALE, sinks=torch.zeros(HEADS)))
    first = some[2] / plain[2]  # one key: its share is sigmoid(score)
    keys = bench.pages.blocks[0][0][sequences[1].table.block_ids[0], 0].repeat_interleave(2, 0)
    score = (query[2] * keys).sum(-1) * SCALE
    torch.testing.assert_close(first, torch.sigmoid(score)[:, None].expand_as(first))


def test_the_reference_refuses_what_it_cannot_do():
    query, keys = torch.zeros(1, 3, 4), torch.zeros(2, 8, 2, 4)
    counts = torch.tensor([0, 1], dtype=torch.int32)
    arguments = {"seqused_k": counts[1:], "block_table": torch.zeros(1, 1, dtype=torch.int32)}
    with pytest.raises(ValueError, match="3 query heads on 2 key heads"):
        reference_varlen_attn(query, keys, keys, counts, None, 1, 1, enable_gqa=True, **arguments)
    with pytest.raises(ValueError, match="needs block_table and seqused_k"):
        reference_varlen_attn(query[:, :2], keys, keys, counts, None, 1, 1)
