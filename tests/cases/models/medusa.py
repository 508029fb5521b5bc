"""Folders of Medusa heads for a target of given sizes, in the spellings that are published."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

NUM_HEADS = 3


def random(*shape: int, seed: int, scale: float = 0.1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return scale * torch.randn(*shape, generator=generator)


def residuals(width: int, *, scale: float = 0.1) -> dict[str, Tensor]:
    """One residual layer with a bias for each head, by vLLM's keys."""
    weights = {}
    for head in range(NUM_HEADS):
        name = f"blocks.{head}.layers.0"
        weights[f"{name}.weight"] = random(width, width, seed=head, scale=scale)
        weights[f"{name}.bias"] = random(width, seed=10 + head, scale=scale)
    return weights


def outputs(vocab_size: int, width: int) -> dict[str, Tensor]:
    """An output layer for each head."""
    return {
        f"lm_heads.{head}.weight": random(vocab_size, width, seed=20 + head)
        for head in range(NUM_HEADS)
    }


def write_new(folder: Path, weights: dict[str, Tensor], **config: object) -> Path:
    """As vLLM reads them."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {"model_type": "medusa", "num_heads": NUM_HEADS, "num_hidden_layers": 1}
    (folder / "config.json").write_text(json.dumps(fields | config))
    save_file(weights, folder / "model.safetensors")
    return folder


def write_old(folder: Path, weights: dict[str, Tensor], **config: object) -> Path:
    """As FasterDecoding has published them: a pickled state, with heads as sequences."""
    folder.mkdir(parents=True, exist_ok=True)
    fields = {"medusa_num_heads": NUM_HEADS, "medusa_num_layers": 1}
    (folder / "config.json").write_text(json.dumps(fields | config))
    old = {}
    for key, value in weights.items():
        kind, head, *rest = key.split(".")
        if kind == "blocks":
            old[f"{head}.{rest[1]}.linear.{rest[2]}"] = value
        else:
            old[f"{head}.1.weight"] = value
    torch.save(old, folder / "medusa_lm_head.pt")
    return folder
