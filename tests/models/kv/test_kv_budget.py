"""KV blocks from memory: exact counts, and the refusal of what one session does not fit in."""

from __future__ import annotations

from typing import Any

import pytest

from models.config import EngineConfig
from models.engine.runner import ModelRunner
from models.kv.budget import num_kv_blocks
from tests.fakes.engines import tiny_checkpoint
from tests.harness.kv_memory import kv_bytes

BYTES_PER_TOKEN = 2 * 2 * 2 * 16 * 4  # keys and values, layers, key heads, head size, float32


def config(**changes: Any) -> EngineConfig:
    values: dict[str, Any] = {
        "model_path": str(tiny_checkpoint(noise=0.0)),
        "dtype": "float32",
        "max_model_len": 64,
        "block_size": 16,
        "num_threads": 1,
    }
    return EngineConfig(**(values | changes))


def test_memory_is_handed_out_to_the_last_whole_block() -> None:
    num_bytes = 10 * 16 * BYTES_PER_TOKEN
    runner = ModelRunner(config(kv_cache_memory=num_bytes + 16 * BYTES_PER_TOKEN - 1))
    assert runner.kv_bytes_per_token == BYTES_PER_TOKEN
    assert runner.pool.num_blocks == 10
    one_block = 16 * BYTES_PER_TOKEN  # that of the storage which stays zero
    assert kv_bytes(runner) == num_bytes + one_block


def test_tokens_are_taken_where_no_memory_is_given() -> None:
    assert num_kv_blocks(config(kv_cache_tokens=100), BYTES_PER_TOKEN) == 6


def test_one_longest_session_must_fit() -> None:
    complaint = (
        f"kv_cache_memory: {63 * BYTES_PER_TOKEN} bytes for KV, of {BYTES_PER_TOKEN} per token, "
        "room for 48 tokens; that is less than max_model_len, 64"
    )
    with pytest.raises(ValueError, match=complaint):
        num_kv_blocks(config(kv_cache_memory=63 * BYTES_PER_TOKEN), BYTES_PER_TOKEN)
