"""A small checkpoint whose sizes GPU kernels take, and runners over it.

The tiny checkpoint of the CPU tests has heads of 16, which no FlashAttention is tuned for, and is
used in float32, which none computes; here heads have 64 and the dtype is bfloat16.
"""

from __future__ import annotations

import atexit
import random
import shutil
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from models.config import EngineConfig
from models.engine.runner import ModelRunner
from tests.cases.models.greedy import greedy_text

VOCAB_SIZE = 2048
MAX_MODEL_LEN = 1024
BLOCK_SIZE = 256  # the built-in kernel takes multiples of this only


@cache
def checkpoint() -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=MAX_MODEL_LEN,
        initializer_range=0.15,  # spreads the logits, so that rounding seldom moves an argmax
        bos_token_id=None,
        eos_token_id=None,
    )
    path = Path(tempfile.mkdtemp(prefix="outrider-gpu-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    model: Any = LlamaForCausalLM(config)
    model.to(torch.bfloat16).save_pretrained(path)
    return path


def runner(**changes: Any) -> ModelRunner:
    fields: dict[str, Any] = {
        "model_path": str(checkpoint()),
        "device": "cuda",
        "dtype": "bfloat16",
        "max_model_len": MAX_MODEL_LEN,
        "kv_cache_tokens": 16 * MAX_MODEL_LEN,
        "block_size": BLOCK_SIZE,
        "max_num_batched_tokens": 512,
    }
    given = {key: value for key, value in (fields | changes).items() if value is not None}
    return ModelRunner(EngineConfig(**given))


def text(seed: int, length: int) -> list[int]:
    return random.Random(seed).choices(range(VOCAB_SIZE), k=length)


@cache
def reference_model() -> Any:
    model: Any = LlamaForCausalLM.from_pretrained(checkpoint(), dtype=torch.bfloat16)
    return model.to("cuda")


@torch.inference_mode()
def reference_gap(prefix: list[int], likelier: int, other: int) -> float:
    """How much higher the reference puts one token than another behind `prefix`, as a logit."""
    ids = torch.tensor([prefix], device="cuda")
    logits = reference_model()(ids).logits[0, -1].float()
    return float(logits[likelier] - logits[other])


def reference_greedy(prompt: list[int], num_tokens: int) -> list[int]:
    """`generate` of transformers on the same device and in the same dtype."""
    return greedy_text(reference_model(), prompt, num_tokens)
