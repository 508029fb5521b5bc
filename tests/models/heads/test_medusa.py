"""Folders of Medusa heads: both spellings, what is refused, and logits as a plain forward has."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from models.heads.medusa import MedusaHeads
from models.heads.medusa_folder import read_heads
from tests.cases.models.medusa import (
    NUM_HEADS,
    outputs,
    random,
    residuals,
    write_new,
    write_old,
)

VOCAB, WIDTH = 40, 16
TARGET_HEAD = random(VOCAB, WIDTH, seed=99)
STATES = random(5, WIDTH, seed=7, scale=1.0)


def plain_logits(weights: dict[str, Tensor], head: int, output: Tensor) -> Tensor:
    weight, bias = (weights[f"blocks.{head}.layers.0.{kind}"] for kind in ("weight", "bias"))
    return (STATES + F.silu(STATES @ weight.T + bias)) @ output.T


@pytest.mark.parametrize("write", [write_new, write_old])
def test_heads_with_outputs_of_their_own(write, tmp_path: Path) -> None:
    own = outputs(VOCAB, WIDTH)
    weights = residuals(WIDTH) | own
    read = read_heads(write(tmp_path / "heads", weights), TARGET_HEAD)
    heads = MedusaHeads(read, VOCAB)
    assert len(heads) == NUM_HEADS
    logits = heads.logits(heads.states(STATES, 2))
    assert logits.shape == (5, 2, VOCAB)
    for head in range(2):
        expected = plain_logits(weights, head, own[f"lm_heads.{head}.weight"])
        torch.testing.assert_close(logits[:, head], expected)
    sizes = NUM_HEADS * (WIDTH * WIDTH + WIDTH + VOCAB * WIDTH)
    assert read.num_bytes == 4 * sizes


def test_heads_that_share_the_targets_output(tmp_path: Path) -> None:
    weights = residuals(WIDTH)
    read = read_heads(write_new(tmp_path, weights, original_lm_head=True), TARGET_HEAD)
    heads = MedusaHeads(read, VOCAB)
    logits = heads.logits(heads.states(STATES, NUM_HEADS))
    for head in range(NUM_HEADS):
        expected = plain_logits(weights, head, TARGET_HEAD)
        torch.testing.assert_close(logits[:, head], expected)
    assert read.num_bytes == 4 * (NUM_HEADS * (WIDTH * WIDTH + WIDTH) + VOCAB * WIDTH)


def test_heads_over_a_part_of_the_vocabulary(tmp_path: Path) -> None:
    ids = torch.tensor([3, 7, 30])
    own = outputs(len(ids), WIDTH)
    weights = residuals(WIDTH) | own
    folder = write_new(tmp_path, weights | {"token_map": ids}, truncated_vocab_size=3)
    heads = MedusaHeads(read_heads(folder, TARGET_HEAD), VOCAB)
    logits = heads.logits(heads.states(STATES, 1))[:, 0]
    expected = plain_logits(weights, 0, own["lm_heads.0.weight"])
    torch.testing.assert_close(logits[:, ids], expected)
    assert bool((logits.isfinite().sum(dim=1) == len(ids)).all())


def test_what_is_no_folder_of_such_heads_is_refused_by_name(tmp_path: Path) -> None:
    weights = residuals(WIDTH)
    refused = {
        "no config.json": tmp_path / "nothing",
        r"lacks blocks\.2\.layers\.0\.weight": write_new(
            tmp_path / "less",
            {key: value for key, value in weights.items() if "blocks.2" not in key},
        ),
        r"has extra\.weight, which is no part": write_new(
            tmp_path / "more", weights | {"extra.weight": torch.ones(1)}
        ),
        r"blocks\.0\.layers\.0\.bias has shape \[8\], the target needs \[16\]": write_new(
            tmp_path / "narrow", residuals(8)
        ),
        "token_map has ids beyond 39": write_new(
            tmp_path / "wide",
            weights | outputs(2, WIDTH) | {"token_map": torch.tensor([1, 40])},
        ),
        "num_heads must be at least 1, got 0": write_new(tmp_path / "none", weights, num_heads=0),
        r"none of \*\.safetensors, medusa_lm_head\.pt": write_new(tmp_path / "empty", weights),
    }
    (tmp_path / "empty" / "model.safetensors").unlink()
    for message, folder in refused.items():
        with pytest.raises(ValueError, match=message):
            read_heads(folder, TARGET_HEAD)
