"""Random LoRA adapters in PEFT's format, and the same models with the adapters in their weights."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

from models.checkpoint.adapters import CONFIG_NAME, WEIGHTS_NAME
from tests.cases.models import greedy

_SIZE = 0.2  # of a factor's numbers: the text is another from the first tokens on


def write_adapter(
    folder: Path, model_path: Path, seed: int, rank: int = 4, size: float = _SIZE, **config: Any
) -> Path:
    """Write an adapter of all linear layers but the last, and return its folder."""
    generator = torch.Generator().manual_seed(seed)
    factors: dict[str, Tensor] = {}
    layers = _layers(_model(model_path))
    for name, layer in layers.items():
        a = size * torch.randn(rank, layer.in_features, generator=generator)
        b = size * torch.randn(layer.out_features, rank, generator=generator)
        factors |= {f"base_model.model.{name}.lora_A.weight": a}
        factors |= {f"base_model.model.{name}.lora_B.weight": b}
    folder.mkdir(parents=True, exist_ok=True)
    save_file(factors, folder / WEIGHTS_NAME)
    targets = sorted({name.rpartition(".")[2] for name in layers})
    fields = {"peft_type": "LORA", "r": rank, "lora_alpha": 2 * rank, "target_modules": targets}
    (folder / CONFIG_NAME).write_text(json.dumps(fields | {"bias": "none"} | config))
    return folder


def write_merged(folder: Path, model_path: Path, adapter: Path) -> Path:
    """Write the model with W + B A alpha / r for each W that the adapter changes."""
    model = _model(model_path)
    config = json.loads((adapter / CONFIG_NAME).read_text())
    factors = load_file(adapter / WEIGHTS_NAME)
    for name, layer in _layers(model).items():
        a, b = (factors[f"base_model.model.{name}.lora_{one}.weight"] for one in "AB")
        layer.weight.data += b @ a * config["lora_alpha"] / config["r"]
    model.save_pretrained(folder)
    return folder


def greedy_text(model_path: Path, prompt: list[int], num_tokens: int) -> list[int]:
    """Return the ids that the model in a folder adds to a prompt in float32."""
    return greedy.greedy_text(_model(model_path), prompt, num_tokens)


def _model(path: Path) -> Any:
    return AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)


def _layers(model: Any) -> dict[str, nn.Linear]:
    return {
        name: layer
        for name, layer in model.named_modules()
        if isinstance(layer, nn.Linear) and name != "lm_head"
    }
