"""Checkpoints of AWQ and GPTQ by vLLM's layers, and by our own: the same numbers.

Skipped where vLLM is not installed.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("vllm", reason="vLLM is not installed: configs/vllm-cpu.txt")

import torch
from transformers import AutoModelForCausalLM, LlamaConfig

from models.engine.runner import ModelRunner
from tests.cases.models.llama_family import SIZES, write
from tests.cases.packed_formats import publish
from tests.fakes.engines import text_logits, tiny_config

TEXT = list(range(5, 37))
# Heads of 32 numbers, the least that vLLM takes.
_SIZES: dict[str, Any] = {"hidden_size": 128, "intermediate_size": 256, "initializer_range": 0.1}


def logits_of(folder: Path, **keys: Any) -> torch.Tensor:
    return text_logits(ModelRunner(tiny_config(folder, dtype="bfloat16", **keys)), TEXT)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_logits_are_those_of_the_stored_numbers(method: str, tmp_path: Path) -> None:
    write(LlamaConfig(**{**SIZES, **_SIZES}), tmp_path / "original")
    is_symmetric = method == "gptq"  # vLLM takes no other
    numbers = publish(
        tmp_path / "original", tmp_path / "published", method, is_symmetric=is_symmetric
    )
    whole: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "original")
    with torch.inference_mode():
        for name, weight in numbers.items():
            whole.get_submodule(name).weight.copy_(weight)
        expected = whole(torch.tensor([TEXT])).logits[0]
    own = logits_of(tmp_path / "published")
    by_vllm = logits_of(tmp_path / "published", engine="vllm", graphs="off")
    for found in (own, by_vllm):
        assert (found - expected).norm() / expected.norm() < 0.1
