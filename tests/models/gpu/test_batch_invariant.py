"""`batch_invariant` on GPUs: its parts come to the same bits together."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, Qwen3Config

from models.engine.self_test import is_batch_invariant
from models.gpu.decoder import MergedDecoder
from models.gpu.operations import triton_operations
from tests.cases.models.llama_family import SIZES, write
from tests.harness.gpu.interpreted import add_in_order
from tests.models.gpu.test_decoder import paged_runner

_SMALL = {"vocab_size": 64, "num_hidden_layers": 1, "intermediate_size": 64}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_self_test_finds_the_same_bits(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its passes through our kernels, interpreted, around the reference for attention."""
    pytest.importorskip("triton", reason="Triton is not installed")
    from models.gpu.kernels.product import InvariantLinear

    add_in_order(monkeypatch)
    write(Qwen3Config(**SIZES | _SMALL, head_dim=16), tmp_path)
    runner = paged_runner(tmp_path, dtype="float16", graphs="off", max_model_len=80)
    model = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float16)
    decoder = MergedDecoder(model, 80, InvariantLinear, operations=triton_operations())
    runner.backend._forward = decoder  # type: ignore[attr-defined]
    assert is_batch_invariant(runner)
