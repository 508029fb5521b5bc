"""Families of models by vLLM's layers.

Each text is that of transformers, with drafts and without. Skipped where vLLM is not installed.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: configs/vllm-cpu.txt")

from transformers import DeepseekV3Config, PreTrainedConfig, Qwen2MoeConfig

from models.config import EngineConfig
from models.engine.runner import ModelRunner
from tests.cases.models.architectures import (
    WINDOW,
    configs,
    forget_runners,
    reference_texts,
    serve,
    sizes,
    write,
)

DRAFT_NOISE = 0.01
_HEAD_DIM = 32  # the least that vLLM's kernels for CPUs take
_CONFIGS = configs(_HEAD_DIM)
FAMILIES: dict[str, PreTrainedConfig] = {
    **{name: _CONFIGS[name] for name in ("llama", "qwen3", "mistral", "gemma3", "phi3", "olmo2")},
    **{name: _CONFIGS[name] for name in ("gpt_oss", "qwen3_moe", "mixtral", "gpt2")},
    "qwen2_moe": Qwen2MoeConfig(
        **sizes(_HEAD_DIM),
        moe_intermediate_size=64,
        shared_expert_intermediate_size=64,
        num_experts=4,
        num_experts_per_tok=2,
    ),
}


@pytest.fixture(scope="module", autouse=True)
def forgotten() -> Iterator[None]:
    yield
    forget_runners()


@cache
def checkpoint(name: str, noise: float = 0.0) -> Path:
    path = Path(tempfile.mkdtemp(prefix="outrider-vllm-"))
    atexit.register(shutil.rmtree, path, ignore_errors=True)
    write(FAMILIES[name], path, noise)
    return path


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", FAMILIES)
def test_text_is_that_of_transformers_with_drafts_and_without(name: str) -> None:
    path, draft = checkpoint(name), checkpoint(name, DRAFT_NOISE)
    expected = reference_texts(path)  # first: vLLM registers layers of its own with transformers
    assert serve(path, engine="vllm").texts == expected
    drafted = serve(path, draft, k=4, engine="vllm")
    assert drafted.texts == expected
    assert 0 < drafted.num_accepted < drafted.num_drafted


@pytest.mark.slow
def test_a_dense_model_goes_on_after_a_mixture_of_experts_was_loaded() -> None:
    before = serve(checkpoint("llama"), engine="vllm").texts
    serve(checkpoint("mixtral"), engine="vllm")
    assert serve(checkpoint("llama"), engine="vllm").texts == before


def test_a_model_that_vllm_does_not_serve_is_refused_with_its_reason(tmp_path: Path) -> None:
    write(_CONFIGS["qwen2"], tmp_path)  # one of its layers has the window, the other sees all
    config = EngineConfig(model_path=str(tmp_path), engine="vllm", max_model_len=2 * WINDOW)
    with pytest.raises(ValueError, match=r"vLLM cannot serve .* some but all layers"):
        ModelRunner(config)


def test_latent_attention_is_refused_by_name(tmp_path: Path) -> None:
    """Its text parted from that of vLLM's own engine."""
    latent: dict[str, Any] = {
        **sizes(_HEAD_DIM),
        **{"num_key_value_heads": 4, "kv_lora_rank": 64, "qk_rope_head_dim": 32},
        **{"n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1},
    }
    write(DeepseekV3Config(**latent), tmp_path)
    config = EngineConfig(model_path=str(tmp_path), engine="vllm", max_model_len=64)
    with pytest.raises(ValueError, match="multi-head latent attention"):
        ModelRunner(config)
