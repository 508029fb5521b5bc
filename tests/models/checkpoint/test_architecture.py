from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from transformers import (
    BambaConfig,
    BertConfig,
    BloomConfig,
    DeepseekV3Config,
    DeepseekV32Config,
    DiffLlamaConfig,
    DogeConfig,
    Gemma2Config,
    Gemma3nTextConfig,
    Gemma3TextConfig,
    Gemma4TextConfig,
    GPT2Config,
    GptOssConfig,
    JambaConfig,
    Lfm2Config,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    MiniMaxConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3NextConfig,
    RwkvConfig,
    T5Config,
)

from models.attention.features import layer_windows
from models.checkpoint.architecture import refuse_unsupported
from models.config import EngineConfig
from models.engine.runner import ModelRunner
from tests.cases.models.architectures import write
from tests.fakes.engines import tiny_config

RECURRENT = "its layers keep a recurrent state"


def config(**overrides: Any) -> EngineConfig:
    return EngineConfig(model_path="unused", **{"max_model_len": 256, **overrides})


def rope(kind: str, **fields: Any) -> dict[str, Any]:
    return {"rope_type": kind, "rope_theta": 1e4, **fields}


@pytest.mark.parametrize(
    ("hf_config", "reason"),
    [
        (T5Config(), "it has an encoder and a decoder"),
        (MambaConfig(), RECURRENT),
        (RwkvConfig(), RECURRENT),
        (JambaConfig(), RECURRENT),
        (BambaConfig(), RECURRENT),
        (Qwen3NextConfig(), RECURRENT),
        (MiniMaxConfig(), "layers of type linear_attention: layers with a recurrent state"),
        (Lfm2Config(full_attn_idxs=[0]), "layers of type conv: convolution layers"),
        (Llama4TextConfig(), "layers of type chunked_attention: attention in chunks"),
        (DeepseekV32Config(), "layers of type indexed_attention"),
        (DeepseekV3Config(), r"multi-head latent attention.* \(kv_lora_rank\)"),
        (Gemma3nTextConfig(), r"share the keys of others \(num_kv_shared_layers\)"),
        (Gemma3TextConfig(use_bidirectional_attention=True), "attention to later positions"),
        (GPT2Config(add_cross_attention=True), "attention to an encoder"),
        (DiffLlamaConfig(), "differential attention"),
        (DogeConfig(), "a mask that depends on the values"),
        (Gemma4TextConfig(), "layers whose heads differ in number or size"),
        (BloomConfig(), "does not use transformers' attention interface"),
        (LlamaConfig(rope_parameters=rope("dynamic", factor=2.0)), "dynamic rope"),
        (
            Gemma3TextConfig(
                rope_parameters={
                    "full_attention": rope("dynamic", factor=2.0),
                    "sliding_attention": rope("default"),
                }
            ),
            "dynamic rope",
        ),
    ],
    ids=lambda value: value.model_type if hasattr(value, "model_type") else "",
)
def test_what_cannot_be_served_is_refused_by_name(hf_config: PreTrainedConfig, reason: str) -> None:
    with pytest.raises(ValueError, match=f"'{hf_config.model_type}' cannot be served: .*{reason}"):
        refuse_unsupported(hf_config, config())


@pytest.mark.parametrize(
    ("hf_config", "windows"),
    [
        (LlamaConfig(num_hidden_layers=2), (None, None)),
        (MistralConfig(num_hidden_layers=2, sliding_window=None), (None, None)),
        (MistralConfig(num_hidden_layers=2, sliding_window=256), (256, 256)),
        (Qwen2Config(num_hidden_layers=2, sliding_window=128), (None, None)),
        (
            Qwen2Config(
                num_hidden_layers=3,
                use_sliding_window=True,
                sliding_window=128,
                max_window_layers=1,
            ),
            (None, 128, 128),
        ),
        (Gemma2Config(num_hidden_layers=3), (4096, None, 4096)),
        (GptOssConfig(num_hidden_layers=2), (128, None)),
    ],
    ids=["llama", "mistral", "mistral_v0_1", "qwen2_off", "qwen2_on", "gemma2", "gpt_oss"],
)
def test_what_can_be_served_has_the_windows_of_its_config(
    hf_config: PreTrainedConfig, windows: tuple[int | None, ...]
) -> None:
    refuse_unsupported(hf_config, config())
    assert layer_windows(hf_config) == windows


@pytest.mark.parametrize(
    "hf_config", [GPT2Config(n_positions=64), LlamaConfig(max_position_embeddings=64)]
)
def test_context_beyond_the_checkpoints_is_refused(hf_config: PreTrainedConfig) -> None:
    message = r"max_model_len must be at most .*max_position_embeddings \(64\), got 65"
    with pytest.raises(ValueError, match=message):
        refuse_unsupported(hf_config, config(max_model_len=65))
    refuse_unsupported(hf_config, config(max_model_len=64))


def test_an_encoder_that_calls_itself_a_language_model_is_refused(tmp_path: Path) -> None:
    """Its config says nothing; its layers do, in the first pass of the start-up test."""
    sizes = {"vocab_size": 64, "hidden_size": 32, "intermediate_size": 32}
    write(BertConfig(**sizes, num_hidden_layers=2, num_attention_heads=2), tmp_path)
    with pytest.raises(ValueError, match=r"BertSelfAttention uses later positions: not served"):
        ModelRunner(tiny_config(tmp_path))
