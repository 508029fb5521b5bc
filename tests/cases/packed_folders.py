"""Checkpoint folders with weights in groups, made of ordinary ones by llama.cpp's own rounding."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Kind
from safetensors.numpy import save_file
from transformers import AutoModelForCausalLM

from models.gguf.packed import groups_of
from models.packed_form import GROUP, METHOD

WEIGHTS = "model.safetensors"


def pack_folder(folder: Path, out: Path, kind: Kind, mixed: Kind | None = None) -> Path:
    """Write the folder's model with its matrices rounded to `kind`, values of attention and every
    second layer's `down_proj` to `mixed`; return the new folder."""
    out.mkdir(parents=True)
    for path in folder.iterdir():
        if path.is_file() and path.suffix in (".json", ".jinja"):
            shutil.copy(path, out)
    config: dict[str, Any] = json.loads((out / "config.json").read_text())
    terms = {"quant_method": METHOD, "group_size": GROUP}
    (out / "config.json").write_text(json.dumps(config | {"quantization_config": terms}))
    model = AutoModelForCausalLM.from_pretrained(folder)
    stored: dict[str, Any] = {}
    for name, weight in model.float().state_dict().items():
        if name == "lm_head.weight" and model.config.tie_word_embeddings:
            continue
        if weight.ndim < 2:
            stored[name] = weight.numpy()
            continue
        is_other = "v_proj" in name or "1.mlp.down_proj" in name
        of = mixed if mixed is not None and is_other else kind
        layer = name.removesuffix(".weight")
        parts = groups_of(gguf.quantize(weight.numpy(), of), of)
        stored |= {layer + end: part for end, part in parts.items()}
    save_file({name: np.ascontiguousarray(one) for name, one in stored.items()}, out / WEIGHTS)
    return out
