"""The gathering way: masks of its tiles, and what transformers may not ask it for."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from models.attention.gather_pass import KEY_CHUNK
from models.attention.gather_plan import plan_pass
from models.attention.interface import paged_attention
from models.kv.block_pool import BlockPool
from models.kv.rows import SequenceRows
from tests.cases.attention import (
    HEAD_DIM,
    HEADS,
    KEY_HEADS,
    GatherBench,
)


def test_masks_do_not_grow_with_the_query_heads():
    bench = GatherBench(torch.float32)
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


def _call(**arguments):
    storage = GatherBench(torch.float32).storage
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
