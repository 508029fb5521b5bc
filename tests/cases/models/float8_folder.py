"""Checkpoints as they are published in float8 ("FP8-dynamic", by compressed-tensors)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

WEIGHTS: dict[str, Any] = {
    "num_bits": 8,
    "type": "float",
    "strategy": "channel",
    "symmetric": True,
    "dynamic": False,
    "observer": "mse",
}
INPUTS: dict[str, Any] = {
    "num_bits": 8,
    "type": "float",
    "strategy": "token",
    "symmetric": True,
    "dynamic": True,
}


def quantization_config(ignore: list[str]) -> dict[str, Any]:
    """What such a checkpoint's config.json says."""
    return {
        "quant_method": "compressed-tensors",
        "format": "float-quantized",
        "quantization_status": "compressed",
        "kv_cache_scheme": None,
        "ignore": ignore,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": WEIGHTS,
                "input_activations": INPUTS,
                "output_activations": None,
            }
        },
    }


def publish(
    source: Path, folder: Path, whole: Sequence[str] = (), *, rounds_head: bool = False
) -> Path:
    """Write the checkpoint of `source` to `folder` in float8, but for layers of the names `whole`.

    Scales are not those that rounding when it is loaded would find: a layer that is rounded anew
    shows.
    """
    folder.mkdir()
    stored: dict[str, Tensor] = {}
    for key, tensor in load_file(source / "model.safetensors").items():
        name = key.removesuffix(".weight")
        is_layer = "_proj" in name or (rounds_head and name == "lm_head")
        if not is_layer or key.endswith("bias") or name.endswith(tuple(whole)):
            stored[key] = tensor.bfloat16()
            continue
        scales = (tensor.abs().amax(dim=1, keepdim=True) / 400).bfloat16()
        stored[key] = (tensor / scales.float()).to(torch.float8_e4m3fn)
        stored[f"{name}.weight_scale"] = scales
    save_file(stored, folder / "model.safetensors", metadata={"format": "pt"})
    content = json.loads((source / "config.json").read_text(encoding="utf-8"))
    content["quantization_config"] = quantization_config(
        [*(() if rounds_head else ("lm_head",)), *(f"re:.*{name}" for name in whole)]
    )
    (folder / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def multiplied(folder: Path, to: Path) -> Path:
    """The same model with its weights times their scales, in bfloat16."""
    to.mkdir()
    stored = load_file(folder / "model.safetensors")
    plain = {
        key: (tensor.float() * stored[f"{key}_scale"].float()).bfloat16()
        if f"{key}_scale" in stored
        else tensor
        for key, tensor in stored.items()
        if not key.endswith("_scale")
    }
    save_file(plain, to / "model.safetensors", metadata={"format": "pt"})
    content = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    del content["quantization_config"]
    (to / "config.json").write_text(json.dumps(content), encoding="utf-8")
    return to
