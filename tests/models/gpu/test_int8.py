"""Weights of 8 bits on GPUs: what they need, and that a whole model is of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Olmo2Config, Qwen3Config

from models.checkpoint.memory_estimate import memory_estimate
from models.config import EngineConfig
from models.engine.runner import ModelRunner
from models.gpu import products
from models.gpu.decoder import MergedDecoder
from models.gpu.reference import reference_kernel
from models.layers.linear import plain_linear
from models.layers.quantization import quantize_weight
from models.parallel.layers import num_local_bytes
from tests.cases.models.llama_family import SIZES, chunked_logits, write

KERNEL = reference_kernel()
_SMALL = Qwen3Config(**SIZES | {"num_hidden_layers": 1}, head_dim=16)


def on_gpu(folder: Path | str = "m", **changes: Any) -> EngineConfig:
    fields: dict[str, Any] = {"device": "cuda", "quantization": "int8", "max_model_len": 128}
    return EngineConfig(model_path=str(folder), **fields | changes)


def test_it_is_for_any_number_of_ranks_and_goes_with_batch_invariant() -> None:
    for changes in ({}, {"tensor_parallel_size": 4}, {"batch_invariant": True}):
        own = products.own_products(on_gpu(**changes))
        assert own is not None
        assert own.make_linear is own.make_head is products.int8_linear
    on_cpu = on_gpu(device="cpu", quantization="q8")
    assert products.own_products(on_cpu) is None, "a CPU has layers of its own"


def test_it_is_refused_where_something_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")

    def refuse(model_config: Any, kernel: Any = KERNEL) -> None:
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(model_config)
        checkpoint: Any = SimpleNamespace(model=model, has_scales=False)
        products.refuse_own_products(on_gpu(), checkpoint, kernel)

    refuse(_SMALL)
    with pytest.raises(ValueError, match="quantization int8 needs a paged attention kernel"):
        refuse(_SMALL, None)
    with pytest.raises(ValueError, match="these are of olmo2; leave it out"):
        refuse(Olmo2Config(**SIZES))
    monkeypatch.setattr(products, "has_kernels", lambda device: False)
    with pytest.raises(ValueError, match="quantization int8 needs Triton"):
        refuse(_SMALL)


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
    runner = ModelRunner(
        EngineConfig(
            model_path=str(tmp_path),
            dtype="float32",
            attention="varlen",
            graphs="off",
            block_size=16,
            max_model_len=256,
            kv_cache_tokens=1024,
        )
    )

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
    config = on_gpu(tmp_path, dtype="float32")
    assert memory_estimate(config).weight_bytes == num_bytes
