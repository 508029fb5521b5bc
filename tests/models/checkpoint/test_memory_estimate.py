"""Sizes computed without weights are those of the loaded model, and of each of its ranks."""

from __future__ import annotations

import json
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
from transformers import LlamaConfig

from models.checkpoint.loader import load_checkpoint
from models.checkpoint.memory_estimate import memory_estimate
from models.checkpoint.stored_weights import INDEX_NAME, missing_shards, num_stored_parameters
from models.config import GROUPED, EngineConfig, QuantizationName
from models.engine.backends import lay_out
from models.parallel.ranks import TensorParallel
from tests.cases.models.architectures import CONFIGS, checkpoint
from tests.harness.rank_processes import start_ranks

DEMO = Path(__file__).resolve().parents[3] / "models" / "demo" / "target"
Sizes = tuple[int, int]  # bytes of weights, bytes of KV per token


def loaded_sizes(config: EngineConfig, ranks: TensorParallel | None = None) -> Sizes:
    loaded = load_checkpoint(config, ranks)
    num_values = loaded.num_layers * loaded.num_key_heads * loaded.head_dim
    itemsize = 4 if config.dtype == "float32" else 2
    laid_out = lay_out(loaded, config, None)
    return laid_out.packed.weight_bytes, 2 * num_values * itemsize


def computed_sizes(config: EngineConfig) -> Sizes:
    taken = memory_estimate(config)
    return taken.weight_bytes, taken.kv_bytes_per_token


@pytest.mark.parametrize("name", CONFIGS)
def test_sizes_are_those_of_the_loaded_model(name: str) -> None:
    config = EngineConfig(model_path=str(checkpoint(name)), max_model_len=64, dtype="float32")
    assert computed_sizes(config) == loaded_sizes(config)


@pytest.mark.parametrize("quantization", GROUPED)
@pytest.mark.parametrize("name", ["llama", "qwen2", "gpt2", "gemma2"])
def test_rounded_sizes_too(name: str, quantization: QuantizationName) -> None:
    path = str(checkpoint(name))
    config = EngineConfig(model_path=path, max_model_len=64, quantization=quantization)
    assert computed_sizes(config) == loaded_sizes(config)


def _report(ranks: TensorParallel | None, pipe: Connection, config: EngineConfig) -> None:
    pipe.send(loaded_sizes(config, ranks))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["llama", "qwen2", "qwen3_moe"])
def test_a_ranks_sizes_are_those_it_loads(name: str) -> None:
    config = EngineConfig(
        model_path=str(checkpoint(name)), max_model_len=64, tensor_parallel_size=2
    )
    with start_ranks(2, _report, config) as ranks:
        loaded = [rank.receive() for rank in ranks]
    assert loaded == [computed_sizes(config)] * 2


def test_production_sizes_need_no_such_machine(tmp_path: Path) -> None:
    """Llama 70B on four GPUs: what configs/prod.yaml says of it."""
    LlamaConfig(
        hidden_size=8192,
        intermediate_size=28672,
        num_hidden_layers=80,
        num_attention_heads=64,
        num_key_value_heads=8,
        vocab_size=128256,
        max_position_embeddings=131072,
        tie_word_embeddings=False,
    ).save_pretrained(tmp_path)
    (tmp_path / "model.safetensors").write_bytes(b"")
    taken = memory_estimate(EngineConfig(model_path=str(tmp_path), tensor_parallel_size=4))
    assert taken.num_parameters == 70_553_706_496
    assert taken.kv_bytes_per_token == 320 * 1024 // 4
    norms = (2 * 80 + 1) * 8192 * 2
    assert taken.weight_bytes == (2 * taken.num_parameters - norms) // 4 + norms


def test_what_is_stored_is_counted_by_headers() -> None:
    config = EngineConfig(model_path=str(DEMO))
    assert num_stored_parameters(DEMO) == memory_estimate(config).num_parameters == 7_475_456


def test_files_that_an_index_names_must_be_there(tmp_path: Path) -> None:
    assert missing_shards(tmp_path) == []
    shards = {"a.weight": "1.safetensors", "b.weight": "2.safetensors", "b.bias": "2.safetensors"}
    (tmp_path / INDEX_NAME).write_text(json.dumps({"metadata": {}, "weight_map": shards}))
    (tmp_path / "1.safetensors").symlink_to(DEMO / "model.safetensors")
    assert missing_shards(tmp_path) == ["2.safetensors"]
    whole = (DEMO / "model.safetensors").read_bytes()
    for others in (b"\0\0", whole[:-2]):  # no header; a copy that was cut off
        (tmp_path / "2.safetensors").write_bytes(others)
        with pytest.raises(
            ValueError, match=r"cannot read .*2\.safetensors: no whole safetensors file"
        ):
            num_stored_parameters(tmp_path)
    (tmp_path / INDEX_NAME).write_text("[]")
    with pytest.raises(ValueError, match=r"cannot read .*index\.json"):
        missing_shards(tmp_path)
