"""Passes by rows: their products are the whole model's, and their blocks come back."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from loadtest.frame.passes import (
    decode_shapes,
    memory_floor_ms,
    num_product_bytes,
    timed_shapes,
)
from models.config import EngineConfig
from models.engine.runner import ModelRunner
from tests.cases.tiny_llama import TINY_VOCAB_SIZE, write_tiny_llama


@pytest.fixture
def runner(tmp_path: Path) -> ModelRunner:
    return ModelRunner(
        EngineConfig(
            model_path=str(write_tiny_llama(tmp_path / "target")),
            max_model_len=256,
            kv_cache_tokens=2048,
            num_threads=1,
        )
    )


def test_products_are_those_of_the_whole_model(runner: ModelRunner) -> None:
    layer = 64 * 64 * 2 + 64 * 32 * 2 + 3 * 64 * 176
    assert num_product_bytes(runner) == 2 * (2 * layer + 64 * TINY_VOCAB_SIZE)
    assert memory_floor_ms(runner) > 0


def test_weights_of_eight_bits_count_a_byte(runner: ModelRunner) -> None:
    linear = torch.nn.Linear(64, 32, bias=False)
    rounded = torch.nn.Linear(64, 32, bias=False)
    rounded.weight = torch.nn.Parameter(linear.weight.to(torch.int8), requires_grad=False)
    some: Any = SimpleNamespace(dtype=torch.bfloat16, products=lambda: [rounded, linear.bfloat16()])
    assert num_product_bytes(some) == 64 * 32 * (1 + 2)


def test_passes_give_their_blocks_back_and_skip_what_does_not_fit(runner: ModelRunner) -> None:
    shapes = decode_shapes(runner, context=200)
    assert [shape.name for shape in shapes] == [
        *("1x1", "1x2", "1x6", "4x1", "4x6", "8x1", "8x6"),
        "128 new",  # 64 sessions do not fit in the cache, 512 rows not in the context
    ]
    with timed_shapes(runner, shapes[:2]) as turns:
        assert list(turns) == ["1x1", "1x2"]
        times = [turn() for turn in turns.values()]
    assert all(time["pass_ms"] > 0 and time["products_ms"] > 0 for time in times)
    runner.pool.check([])
