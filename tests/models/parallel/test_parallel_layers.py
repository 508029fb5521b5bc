"""Every way in which a plan cuts layers gives the logits of the whole model, on real ranks."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    MixtralConfig,
    Olmo2Config,
    Phi3Config,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
    Starcoder2Config,
)

from models.config import DtypeName
from models.engine.runner import ModelRunner
from models.parallel.layers import ParallelEmbedding, RowParallelLinear
from tests.cases.models.architectures import write
from tests.fakes.engines import text_logits, tiny_config
from tests.harness.rank_processes import shared_engine

TEXT = list(range(3, 40))
SIZES: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": 1,
}


def _whole_logits(path: str, dtype: DtypeName) -> torch.Tensor:
    return text_logits(ModelRunner(tiny_config(path, dtype=dtype)), TEXT)


@pytest.mark.slow
@pytest.mark.parametrize(
    "config",
    [
        Qwen2Config(**SIZES, tie_word_embeddings=False),
        Qwen3Config(**SIZES, head_dim=16),
        Starcoder2Config(**SIZES, use_bias=True),
        Phi3Config(**SIZES),
        Olmo2Config(**SIZES),
        MixtralConfig(**SIZES, num_local_experts=4, sliding_window=None),
    ],
    ids=["column_bias", "head_norms", "row_bias", "fused_gathered", "undivided_heads", "experts"],
)
def test_two_ranks_compute_the_whole_model(config: PreTrainedConfig, tmp_path: Path) -> None:
    write(config, tmp_path)
    path = str(tmp_path)
    expected = _whole_logits(path, "float32")
    with shared_engine("target", 2, path) as engine:
        logits = engine.forward(("a", 0, TEXT, len(TEXT)))
        torch.testing.assert_close(logits, expected, rtol=0, atol=1e-4)


@pytest.mark.slow
def test_bfloat16_is_as_near_as_one_process(
    make_tiny_llama: Callable[..., str],
) -> None:
    path = make_tiny_llama(seed=1)
    exact, whole = _whole_logits(path, "float32"), _whole_logits(path, "bfloat16")
    with shared_engine("target", 2, path, dtype="bfloat16") as engine:
        logits = engine.forward(("a", 0, TEXT, len(TEXT)))
        assert engine.sizes[0]["batch_invariant"]
    assert (logits - exact).pow(2).mean() < 1.5 * (whole - exact).pow(2).mean()


class _OtherRanks:
    """Rank 1 of 2; what rank 0 would add is given."""

    rank = 1
    world_size = 2

    def __init__(self, other: torch.Tensor) -> None:
        self._other = other

    def sum(self, part: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        total = self._other + part
        return total if bias is None else total + bias

    def gather_columns(self, columns: torch.Tensor) -> torch.Tensor:
        return torch.cat([self._other, columns], dim=-1)

    gather_to_leader = gather_columns


def test_a_rank_looks_up_its_own_words_only() -> None:
    weight = torch.arange(12.0).view(6, 2)
    other = torch.zeros(1, 3, 2)
    other[0, 0] = weight[1]
    embedding = ParallelEmbedding(weight[3:], _OtherRanks(other))
    assert torch.equal(embedding(torch.tensor([[1, 3, 5]])), weight[torch.tensor([[1, 3, 5]])])


@pytest.mark.parametrize("splits_input", [False, True])
def test_the_bias_is_added_once(splits_input: bool) -> None:
    whole = nn.Linear(6, 4)
    local = nn.Linear(3, 4, bias=False)
    local.weight = nn.Parameter(whole.weight[:, 3:])
    rows = torch.randn(5, 6)
    other = nn.functional.linear(rows[:, :3], whole.weight[:, :3])
    layer = RowParallelLinear(local, whole.bias, _OtherRanks(other), splits_input=splits_input)
    out = layer(rows if splits_input else rows[:, 3:])
    torch.testing.assert_close(out, whole(rows))
