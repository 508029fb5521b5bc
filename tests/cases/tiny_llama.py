"""A tiny seeded random Llama, written as an ordinary checkpoint folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

TINY_VOCAB_SIZE = 512


def write_tiny_llama(directory: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """A random Llama with grouped heads in `directory`; `overrides` are LlamaConfig fields."""
    fields: dict[str, Any] = {
        "vocab_size": TINY_VOCAB_SIZE,
        "hidden_size": 64,
        "intermediate_size": 176,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": 1,
        "initializer_range": 0.2,  # spreads the logits, so that an error would move an argmax
    }
    generator_state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        model: Any = LlamaForCausalLM(LlamaConfig(**{**fields, **overrides}))
    finally:
        torch.set_rng_state(generator_state)
    model.to(torch.bfloat16).save_pretrained(directory)
    return directory
