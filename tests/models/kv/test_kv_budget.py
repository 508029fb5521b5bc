"""KV blocks from memory: exact counts, and the refusal of what one session does not fit in."""

from __future__ import annotations

from typing import Any

import pytest

from models.config import EngineConfig
from models.engine.runner import ModelRunner
from models.kv.budget import CONTEXT_BYTES, num_kv_blocks, share_for_kv
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


GIB = 1 << 30


def of_a_gpu(**changes: Any) -> EngineConfig:
    return config(device="cuda", gpu_memory_utilization=0.5, **changes)


def test_a_share_of_a_gpu_is_kept_to_whoever_else_uses_it() -> None:
    """Half of 80 GiB, less weights, what a pass needs for a while, graphs and the context."""
    share = share_for_kv(of_a_gpu(graph_memory_mib=1024), 80 * GIB, 16 * GIB, 2 * GIB)
    assert share == (40 - 16 - 2 - 1) * GIB - CONTEXT_BYTES
    assert share_for_kv(of_a_gpu(graphs="off"), 80 * GIB, 16 * GIB, 2 * GIB) - share == GIB


def test_ranks_may_have_a_share_each() -> None:
    assert of_a_gpu(tensor_parallel_size=4).gpu_memory_utilization == 0.5


def test_a_share_that_holds_no_session_is_refused() -> None:
    with pytest.raises(ValueError, match=r"gpu_memory_utilization: 0\.5 leaves -5 bytes for KV"):
        num_kv_blocks(of_a_gpu(), BYTES_PER_TOKEN, share_bytes=-5)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"block_size": "auto"}, 64),
        ({"block_size": "auto", "device": "cuda"}, 256),
        ({"block_size": 32, "device": "cuda"}, 32),
    ],
)
def test_a_block_is_taken_as_large_as_it_may_come_to_be(
    changes: dict[str, Any], expected: int
) -> None:
    assert config(**changes).block_tokens == expected


def test_the_runner_says_what_a_block_came_to() -> None:
    runner = ModelRunner(config(block_size="auto"))
    assert runner.config.block_size == runner.pool.block_size == 64
    assert runner.attention == "compiled, blocks of 64"
