"""Folders of an MTP head: what is read, what is refused, and what memory it takes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, GPT2Config

from models.checkpoint.memory_estimate import memory_estimate
from models.engine.runner import ModelRunner, SequenceRows
from models.heads.mtp import read_mtp
from tests.cases.models.mtp import NUM_STEPS, PREFIX, mtp_weights, write_mtp
from tests.fakes.engines import make_runner, random_prompt, tiny_checkpoint, tiny_config

TARGET = tiny_checkpoint(noise=0.0)
WIDTH, VOCAB = 64, 256


def model() -> Any:
    return AutoModelForCausalLM.from_pretrained(TARGET, dtype=torch.float32)


def test_what_is_no_such_head_is_refused_by_name(tmp_path: Path) -> None:
    weights = mtp_weights(TARGET)
    key = f"{PREFIX}mlp.up_proj.weight"
    refused = {
        r"lacks mtp_layers\.0\.mlp\.up_proj\.weight": write_mtp(
            tmp_path / "less", {name: one for name, one in weights.items() if name != key}
        ),
        r"has extra, which is no part of an MTP head": write_mtp(
            tmp_path / "more", weights | {"extra": torch.ones(1)}
        ),
        r"mlp\.up_proj\.weight has shape \[96, 8\], the target needs \[96, 64\]": write_mtp(
            tmp_path / "narrow", weights | {key: torch.ones(96, 8)}
        ),
        "d2t has ids beyond 255": write_mtp(
            tmp_path / "wide", weights | {"d2t": torch.tensor([0, 255])}
        ),
        "num_nextn_predict_layers must be 1, got 2": write_mtp(
            tmp_path / "two", weights, num_nextn_predict_layers=2
        ),
        "num_speculative_steps must be 1 to [0-9]+, got 0": write_mtp(
            tmp_path / "none", weights, num_speculative_steps=0
        ),
        "speculative_tokens must be 1 to [0-9]+, got '5'": write_mtp(
            tmp_path / "text",
            weights,
            speculators_config={"proposal_methods": [{"speculative_tokens": "5"}]},
        ),
    }
    for message, folder in refused.items():
        with pytest.raises(ValueError, match=message):
            read_mtp(folder, model())


def gpt2() -> Any:
    return AutoModelForCausalLM.from_config(GPT2Config(n_layer=1, n_embd=16, n_head=2))


def test_a_target_of_another_family_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match="Llama, Mistral, Qwen2 and Qwen3 only so far, not for gpt2"
    ):
        read_mtp(write_mtp(tmp_path, mtp_weights(TARGET)), gpt2())


def logits_of(runner: ModelRunner) -> torch.Tensor:
    table = runner.pool.new_table()
    table.resize(5)
    ids = random_prompt(3, 5)
    runner.forward([SequenceRows(table, 0, ids, 0)])
    assert runner.hidden is not None
    logits, states = runner.draft_pass([SequenceRows(table, 0, ids, 2)], runner.hidden)
    assert states is not None
    assert states.shape == (2, WIDTH)
    table.free()
    return logits


@pytest.mark.parametrize("attention", ["auto", "reference"])
def test_a_head_of_some_ids_has_the_same_logits_for_them(attention: str, tmp_path: Path) -> None:
    weights = mtp_weights(TARGET)
    ids = torch.tensor([3, 7, 200])
    offsets = {"d2t": ids - torch.arange(3)}
    whole = logits_of(
        make_runner(attention=attention, heads=str(write_mtp(tmp_path / "a", weights)))
    )
    few = logits_of(
        make_runner(attention=attention, heads=str(write_mtp(tmp_path / "b", weights | offsets)))
    )
    assert whole.shape == few.shape == (2, VOCAB)
    torch.testing.assert_close(few[:, ids], whole[:, ids])
    assert bool((few.isfinite().sum(dim=1) == 3).all())


def check_memory(heads: Path, num_numbers: int) -> None:
    """Check that a head of one layer takes what is estimated, and drafts by all its steps."""
    runner, without = make_runner(heads=str(heads)), make_runner()
    sizes = memory_estimate(tiny_config(TARGET, heads=str(heads)))
    assert sizes.weight_bytes == runner.weight_bytes
    assert sizes.kv_bytes_per_token == runner.kv_bytes_per_token
    assert runner.weight_bytes - without.weight_bytes == 4 * num_numbers
    assert runner.kv_bytes_per_token * 2 == without.kv_bytes_per_token * 3, "a layer more than two"
    assert runner.draft_layer is not None
    assert runner.draft_layer.num_tokens == NUM_STEPS


@pytest.mark.parametrize("num_ids", [None, 3])
def test_memory_is_estimated_as_it_is_taken(num_ids: int | None, tmp_path: Path) -> None:
    weights = mtp_weights(TARGET)
    num_numbers = sum(weight.numel() for weight in weights.values()) + (num_ids or VOCAB) * WIDTH
    if num_ids is not None:
        weights["d2t"] = torch.zeros(num_ids, dtype=torch.int64)
    check_memory(write_mtp(tmp_path, weights), num_numbers)
