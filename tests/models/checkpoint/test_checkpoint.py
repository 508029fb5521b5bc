from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, modeling_utils

from models.checkpoint.loader import load_checkpoint, pieces_of_memory, read_config
from tests.fakes.engines import tiny_config


def test_loads_sizes(tiny_target):
    checkpoint = load_checkpoint(tiny_config(tiny_target))
    assert (checkpoint.num_columns, checkpoint.drawable.size) == (512, 512)
    assert (checkpoint.num_layers, checkpoint.num_heads, checkpoint.num_key_heads) == (2, 4, 2)
    assert checkpoint.head_dim == 16
    assert checkpoint.eos_ids == (1,)


def test_eos_ids_come_from_the_generation_config(tiny_target, tmp_path):
    path = shutil.copytree(tiny_target, tmp_path / "model")
    generation = path / "generation_config.json"
    generation.write_text(json.dumps({"eos_token_id": [3, 4]}))
    assert load_checkpoint(tiny_config(path)).eos_ids == (3, 4)


@pytest.mark.parametrize(
    ("remove", "message"),
    [
        ("*", "is not a directory"),
        ("config.json", "has no config.json"),
        ("model.safetensors", r"has no \*\.safetensors weights"),
    ],
)
def test_a_missing_part_is_one_clear_message(tiny_target, tmp_path, remove, message):
    path = shutil.copytree(tiny_target, tmp_path / "model")
    if remove == "*":
        shutil.rmtree(path)
    else:
        (path / remove).unlink()
    with pytest.raises(ValueError, match=message) as caught:
        read_config(str(path))
    assert "\n" not in str(caught.value)


def test_a_missing_weight_is_named(tiny_target, tmp_path):
    path: Path = shutil.copytree(tiny_target, tmp_path / "model")
    weights = load_file(path / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        ValueError,
        match=r"lacks 1 weights that config.json means, first 'model.layers.1.mlp.up_proj",
    ):
        load_checkpoint(tiny_config(path))


def test_transformers_takes_no_memory_ahead(tiny_target, monkeypatch):
    """Its own warm-up has this name, and is called where weights go straight to a device."""

    def taken(*args: Any) -> None:
        raise AssertionError("the whole model's memory in one piece")

    def load() -> None:
        AutoModelForCausalLM.from_pretrained(tiny_target, device_map={"": "cpu"})

    monkeypatch.setattr(modeling_utils, "caching_allocator_warmup", taken)
    with pieces_of_memory():
        load()
    with pytest.raises(AssertionError, match="in one piece"):
        load()
