"""The fused forward computes what transformers computes, and a row's bits whatever is beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, OlmoConfig, PreTrainedConfig

from models.checkpoint.loader import load_checkpoint
from models.config import EngineConfig
from models.cpu.backend import FusedForward
from models.cpu.setup import pack
from models.engine.runner import ModelRunner
from models.layers.linear import can_pack
from tests.cases.models.llama_family import (
    CONFIGS,
    SIZES,
    chunked_logits,
    transformers_logits,
    write,
)


def runner(folder: Path, dtype: str = "float32") -> ModelRunner:
    return ModelRunner(
        EngineConfig(
            model_path=str(folder),
            dtype=dtype,
            max_model_len=256,
            kv_cache_tokens=1024,
            num_threads=1,
        )
    )


def is_fused(loaded: ModelRunner) -> bool:
    return isinstance(loaded.layers, FusedForward)


pytestmark = pytest.mark.skipif(
    not can_pack(torch.float32), reason="this CPU or torch has no packed kernel"
)


@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(name: str, tmp_path: Path) -> None:
    write(CONFIGS[name], tmp_path)
    loaded = runner(tmp_path)
    assert is_fused(loaded)
    assert loaded.batch_invariant
    expected = transformers_logits(tmp_path)
    torch.testing.assert_close(chunked_logits(loaded), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["llama", "qwen3", "wide"])
def test_bfloat16_is_batch_invariant(name: str, tmp_path: Path) -> None:
    if not can_pack(torch.bfloat16):
        pytest.skip("this CPU or torch has no packed kernel for bfloat16")
    write(CONFIGS[name], tmp_path)
    loaded = runner(tmp_path, "bfloat16")
    assert is_fused(loaded)
    assert loaded.batch_invariant


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(**SIZES, hidden_act="gelu"),
        OlmoConfig(**SIZES),
    ],
    ids=["another activation", "another family"],
)
def test_other_models_keep_their_own_forward(config: PreTrainedConfig, tmp_path: Path) -> None:
    write(config, tmp_path)
    assert not is_fused(runner(tmp_path))


def test_the_plain_layers_are_given_up(tmp_path: Path) -> None:
    write(CONFIGS["llama"], tmp_path)
    config = EngineConfig(model_path=str(tmp_path), dtype="float32", max_model_len=256)
    model = load_checkpoint(config).model
    pack(model, config, has_kernels=True, is_shared=False)
    left = sum(p.numel() for p in model.model.layers.parameters())
    assert left == 3 * 2 * 64  # the norms
