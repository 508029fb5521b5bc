"""The fused forward computes what transformers computes, and a row's bits whatever is beside it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    OlmoConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from models.checkpoint.loader import load_checkpoint
from models.config import EngineConfig
from models.cpu.backend import FusedForward
from models.cpu.setup import pack
from models.engine.runner import ModelRunner, SequenceRows
from models.layers.linear import can_pack

TEXT = [5, 9, 3, 77, 200, 6, 6, 14, 90, 31] * 9
SIZES = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 176,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "bos_token_id": None,
    "eos_token_id": 1,
    "pad_token_id": None,
}
CONFIGS: dict[str, PreTrainedConfig] = {
    "llama": LlamaConfig(**SIZES),
    "llama-tied": LlamaConfig(**SIZES, tie_word_embeddings=True),
    "llama-biases": LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True),
    "llama-own-head-size": LlamaConfig(**SIZES, head_dim=32),
    "llama3-rope": LlamaConfig(
        **SIZES,
        rope_parameters={
            "rope_type": "llama3",
            "rope_theta": 5e5,
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    ),
    "wide": LlamaConfig(**{**SIZES, "hidden_size": 40, "head_dim": 16, "intermediate_size": 2100}),
    "mistral": MistralConfig(**SIZES, sliding_window=None),
    "mistral-window": MistralConfig(**SIZES, sliding_window=30),
    "qwen2": Qwen2Config(**SIZES),
    "qwen2-alternating": Qwen2Config(
        **SIZES, use_sliding_window=True, sliding_window=30, max_window_layers=2
    ),
    "qwen3": Qwen3Config(**SIZES, head_dim=16),
}


def write(config: PreTrainedConfig, folder: Path) -> None:
    torch.manual_seed(3)
    model = AutoModelForCausalLM.from_config(config)
    with torch.no_grad():  # biases and norms start as 0 and 1, which would hide a mistake
        for name, parameter in model.named_parameters():
            if name.endswith("bias") or "norm" in name:
                parameter.add_(0.3 * torch.randn(parameter.shape))
    model.save_pretrained(folder)


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
    table = loaded.pool.new_table()
    table.resize(len(TEXT))
    chunks = [(0, 40), (40, 41), (41, 47), (47, len(TEXT))]
    logits = torch.cat(
        [
            loaded.forward([SequenceRows(table, start, TEXT[start:stop], stop - start)])
            for start, stop in chunks
        ]
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
    with torch.inference_mode():
        expected = model(torch.tensor([TEXT])).logits[0]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-3)


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
