"""The Llama family taken apart, on CPUs and on GPUs, computes what transformers computes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, Olmo2Config, OlmoConfig, PreTrainedConfig

from models.attention.backend import TransformersForward
from models.cpu.fused_decoder import FusedDecoder
from models.engine.runner import ModelRunner
from models.gpu.decoder import MergedDecoder
from models.layers.linear import can_pack
from tests.cases.models.llama_family import (
    CONFIGS,
    SIZES,
    chunked_logits,
    transformers_logits,
    write,
)
from tests.fakes.engines import tiny_config
from tests.models.gpu.test_decoder import paged_runner


def packed_runner(folder: Path, dtype: str = "float32") -> ModelRunner:
    if not can_pack(getattr(torch, dtype)):
        pytest.skip(f"this CPU or torch has no packed kernel for {dtype}")
    return ModelRunner(tiny_config(folder, dtype=dtype))


DECODERS: dict[type, Callable[[Path], ModelRunner]] = {
    FusedDecoder: packed_runner,
    MergedDecoder: paged_runner,
}
each_decoder = pytest.mark.parametrize("decoder", DECODERS)


@each_decoder
@pytest.mark.parametrize("name", CONFIGS)
def test_logits_are_those_of_transformers(decoder: type, name: str, tmp_path: Path) -> None:
    write(CONFIGS[name], tmp_path)
    loaded = DECODERS[decoder](tmp_path)
    assert isinstance(loaded.layers, decoder)
    assert loaded.batch_invariant or decoder is MergedDecoder
    expected = transformers_logits(tmp_path)
    torch.testing.assert_close(chunked_logits(loaded), expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["llama", "qwen3", "wide"])
def test_bfloat16_is_batch_invariant(name: str, tmp_path: Path) -> None:
    write(CONFIGS[name], tmp_path)
    loaded = packed_runner(tmp_path, "bfloat16")
    assert isinstance(loaded.layers, FusedDecoder)
    assert loaded.batch_invariant


OTHERS: dict[str, Any] = {
    "another activation": LlamaConfig(**SIZES, hidden_act="gelu"),
    "another family": OlmoConfig(**SIZES),
    "norms behind": Olmo2Config(**SIZES),
}


@each_decoder
@pytest.mark.parametrize("config", OTHERS.values(), ids=OTHERS)
def test_other_models_keep_their_own_forward(
    decoder: type, config: PreTrainedConfig, tmp_path: Path
) -> None:
    write(config, tmp_path)
    assert isinstance(DECODERS[decoder](tmp_path).layers, TransformersForward)
