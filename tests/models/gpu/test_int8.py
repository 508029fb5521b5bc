"""Weights of 8 bits on GPUs: a whole model is of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from models.checkpoint.memory_estimate import memory_estimate
from models.gpu import products
from models.gpu.decoder import MergedDecoder
from models.layers.linear import plain_linear
from models.layers.quantization import quantize_weight
from models.parallel.layers import num_local_bytes
from tests.cases.models.llama_family import SIZES, chunked_logits, write
from tests.fakes.engines import tiny_config
from tests.models.gpu.test_decoder import paged_runner

_SMALL = Qwen3Config(**SIZES | {"num_hidden_layers": 1}, head_dim=16)


def rounded_linear(weight: torch.Tensor, bias: torch.Tensor | None) -> torch.nn.Linear:
    """torch's own layer with the numbers that 8 bits stand for."""
    integers, scales = quantize_weight(weight)
    return plain_linear(integers * scales.unsqueeze(1), bias)


@pytest.mark.parametrize("is_tied", [False, True])
def test_a_model_of_them_computes_what_its_rounded_weights_do(
    tmp_path: Path, is_tied: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same integers and scales, summed by other products; and it takes what was estimated."""
    pytest.importorskip("triton", reason="Triton is not installed")
    model_config = _SMALL.__class__(**_SMALL.to_dict() | {"tie_word_embeddings": is_tied})
    write(model_config, tmp_path)
    runner = paged_runner(tmp_path, graphs="off")

    def logits_of(make: Any) -> tuple[torch.Tensor, int]:
        model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float32)
        decoder = MergedDecoder(model, 256, make, make)
        monkeypatch.setattr(runner.backend, "_forward", decoder)
        kept = torch.nn.ModuleList([model, *decoder.products()])
        return chunked_logits(runner), num_local_bytes(kept)

    whole = chunked_logits(runner)
    by_torch, _ = logits_of(rounded_linear)
    by_gpu, num_bytes = logits_of(products.int8_linear)
    torch.testing.assert_close(by_gpu, by_torch, rtol=1e-4, atol=1e-3)
    assert not torch.equal(by_gpu, whole)
    config = tiny_config(tmp_path, device="cuda", quantization="int8")
    assert memory_estimate(config).weight_bytes == num_bytes
