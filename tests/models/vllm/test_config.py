"""The engine that a config names: which keys go with it, and how a missing one is told."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from models.checkpoint.architecture import unsupported_by_vllm
from models.checkpoint.memory_estimate import memory_estimate
from models.config import EngineConfig
from models.engine.runner import ModelRunner
from tests.fakes.engines import tiny_checkpoint

is_here = importlib.util.find_spec("vllm") is not None


@pytest.mark.parametrize(
    ("field", "value", "told"),
    [
        ("attention", "reference", "attention is for engine own, got 'reference'"),
        ("heads", "folder", "heads is for engine own, got 'folder'"),
        ("early_exit", 1, "early_exit is for engine own, got 1"),
        ("quantization", "q8", "quantization is for engine own, got 'q8'"),
        ("graphs", "eager", "graphs must be auto or off with engine vllm, got 'eager'"),
    ],
)
def test_keys_of_our_own_engine_are_refused_by_name(field: str, value: Any, told: str) -> None:
    with pytest.raises(ValueError, match=told):
        EngineConfig(model_path="m", engine="vllm", **{field: value})


@pytest.mark.skipif(is_here, reason="vLLM is installed here")
def test_where_vllm_is_missing_the_refusal_says_what_to_install() -> None:
    config = EngineConfig(model_path=str(tiny_checkpoint(noise=0.0)), engine="vllm")
    with pytest.raises(ValueError, match=r"engine vllm needs vLLM 0\.32\.0"):
        ModelRunner(config)


def test_what_passes_are_not_built_for_is_refused_by_name() -> None:
    from transformers import DeepseekV3Config, LlamaConfig, Qwen3NextConfig

    assert "multi-head latent attention" in unsupported_by_vllm(DeepseekV3Config())
    assert unsupported_by_vllm(LlamaConfig()) == ""
    hybrid = Qwen3NextConfig(num_hidden_layers=4)
    assert "layers of type linear_attention" in unsupported_by_vllm(hybrid)


def test_memory_is_that_of_the_files_in_the_configs_type() -> None:
    path = tiny_checkpoint(noise=0.0)
    stored = sum(file.stat().st_size for file in Path(path).glob("*.safetensors"))  # in float32
    taken = memory_estimate(EngineConfig(model_path=str(path), engine="vllm", max_model_len=64))
    assert 0.95 * stored / 2 < taken.weight_bytes < stored / 2
    own = memory_estimate(EngineConfig(model_path=str(path), max_model_len=64))
    assert taken.kv_bytes_per_token == own.kv_bytes_per_token
