"""`batch_invariant` on GPUs: what it needs, and that its parts come to the same bits together."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Olmo2Config, Qwen3Config

from models.config import EngineConfig
from models.engine.runner import ModelRunner
from models.engine.self_test import is_batch_invariant
from models.gpu import products
from models.gpu.decoder import MergedDecoder
from models.gpu.reference import reference_kernel
from tests.cases.models.llama_family import CONFIGS, SIZES, write
from tests.harness.gpu.interpreted import add_in_order

KERNEL = reference_kernel()
_SMALL = {"vocab_size": 64, "num_hidden_layers": 1, "intermediate_size": 64}


def refuse(kernel: Any, model_config: Any = CONFIGS["llama"], **changes: Any) -> None:
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(model_config)
    fields: dict[str, Any] = {"model_path": "m", "device": "cuda", "batch_invariant": True}
    config = EngineConfig(**fields | changes)
    checkpoint: Any = SimpleNamespace(model=model, has_scales=False)
    products.refuse_own_products(config, checkpoint, kernel)


def test_it_is_refused_where_something_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("triton", reason="Triton is not installed")
    refuse(KERNEL)
    refuse(None, device="cpu")
    refuse(None, batch_invariant=False)
    with pytest.raises(ValueError, match="batch_invariant needs a paged attention kernel"):
        refuse(None)
    with pytest.raises(ValueError, match=r"layers of Llama.* and these are of olmo2; leave it out"):
        refuse(KERNEL, Olmo2Config(**SIZES))
    monkeypatch.setattr(products, "has_kernels", lambda device: False)
    with pytest.raises(ValueError, match="batch_invariant needs Triton"):
        refuse(KERNEL)


def test_only_then_are_products_ours() -> None:
    config = EngineConfig(model_path="m", device="cuda", batch_invariant=True)
    own = products.own_products(config)
    assert own is not None
    assert own.make_linear is own.make_head is products.invariant_linear
    for changes in ({"batch_invariant": False}, {"device": "cpu"}):
        assert products.own_products(config.model_copy(update=changes)) is None


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_self_test_finds_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its passes through our kernels, interpreted, around the reference for attention."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from models.gpu.kernels.operations import TritonOperations
    from models.gpu.kernels.product import InvariantLinear

    add_in_order(monkeypatch)
    write(Qwen3Config(**SIZES | _SMALL, head_dim=16), tmp_path)
    runner = ModelRunner(
        EngineConfig(
            model_path=str(tmp_path),
            dtype="float16",
            attention="varlen",
            graphs="off",
            block_size=16,
            max_model_len=80,
            kv_cache_tokens=512,
        )
    )
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float16)
    decoder = MergedDecoder(model, 80, InvariantLinear, operations=TritonOperations())
    runner.backend._forward = decoder  # type: ignore[attr-defined]
    assert is_batch_invariant(runner)
