"""Targets with an MTP layer in their own checkpoint, in the spellings that are published."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from tests.cases.models.mtp import PREFIX

DEEPSEEK = {
    "token_layernorm": "enorm",
    "hidden_layernorm": "hnorm",
    "input_proj": "eh_proj",
    "final_layernorm": "shared_head.norm",
}
QWEN = {
    "token_layernorm": "pre_fc_norm_embedding",
    "hidden_layernorm": "pre_fc_norm_hidden",
    "input_proj": "fc",
    "final_layernorm": "norm",
}


def as_deepseek(path: Path, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Behind the two layers of the target at `path`, with the copies that such checkpoints have."""
    target = load_file(path / "model.safetensors")
    made = {
        f"model.layers.2.{_named(key, DEEPSEEK, '')}": _joined(key, value)
        for key, value in weights.items()
    }
    made["model.layers.2.embed_tokens.weight"] = target["model.embed_tokens.weight"].clone()
    made["model.layers.2.shared_head.head.weight"] = target["lm_head.weight"].clone()
    return made


def as_qwen(weights: dict[str, Tensor]) -> dict[str, Tensor]:
    return {f"mtp.{_named(key, QWEN, 'layers.0.')}": _joined(key, v) for key, v in weights.items()}


def _named(key: str, names: dict[str, str], layer: str) -> str:
    part = key.removeprefix(PREFIX).removesuffix(".weight")
    return f"{names[part]}.weight" if part in names else f"{layer}{key.removeprefix(PREFIX)}"


def _joined(key: str, value: Tensor) -> Tensor:
    """The embedding's half first."""
    if not key.endswith("input_proj.weight"):
        return value
    width = len(value)
    return torch.cat([value[:, width:], value[:, :width]], dim=1).contiguous()


def write_with(folder: Path, target: Path, further: dict[str, Tensor], **config: object) -> Path:
    """A copy of a target with further weights in its file."""
    shutil.copytree(target, folder)
    fields = json.loads((folder / "config.json").read_text()) | {"num_nextn_predict_layers": 1}
    (folder / "config.json").write_text(json.dumps(fields | config))
    weights = load_file(folder / "model.safetensors") | further
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    return folder
