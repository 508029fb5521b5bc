"""Checkpoints of the Llama family that differ in all that its members may differ in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from models.engine.runner import ModelRunner, SequenceRows

TEXT = [5, 9, 3, 77, 200, 6, 6, 14, 90, 31] * 9
SIZES: dict[str, Any] = {
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


def chunked_logits(loaded: ModelRunner) -> Tensor:
    """Logits of all rows of TEXT, read in chunks of several sizes."""
    table = loaded.pool.new_table()
    table.resize(len(TEXT))
    chunks = [(0, 40), (40, 41), (41, 47), (47, len(TEXT))]
    try:
        return torch.cat(
            [
                loaded.forward([SequenceRows(table, start, TEXT[start:stop], stop - start)]).clone()
                for start, stop in chunks
            ]
        )
    finally:
        table.free()


def transformers_logits(folder: Path) -> Tensor:
    """The same by transformers, in float32."""
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    with torch.inference_mode():
        logits: Tensor = model(torch.tensor([TEXT])).logits[0]
    return logits
