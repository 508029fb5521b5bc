"""Checks LoRA adapters in PEFT's format against the model that they are for, by headers alone.

An adapter's folder has `adapter_config.json` and `adapter_model.safetensors`. Of each changed layer
the file has two factors: A [r, inputs] and B [outputs, r]. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from models.checkpoint.stored_weights import stored_shapes, stored_tensors
from models.config import EngineConfig
from models.files import read_json

CONFIG_NAME, WEIGHTS_NAME = "adapter_config.json", "adapter_model.safetensors"
_PREFIX = "base_model.model."  # PEFT's, before the names of the model's own layers
_Shapes = Mapping[str, tuple[int, ...]]


def check_adapter(folder: Path, model: Path, max_rank: int) -> None:
    """Check that an adapter can be served with a model.

    Args:
        folder: of the adapter.
        model: folder of the checkpoint; one without weights yet is not compared.
        max_rank: highest rank that there is room for.

    Raises:
        ValueError: a file is missing or broken, the rank is too high, or the layers are not those
            of the model; says which, with limit and value.
    """
    if not folder.is_dir():
        raise ValueError(f"no such folder: {str(folder)!r}")
    config = read_json(folder / CONFIG_NAME)
    _check_rank(folder / CONFIG_NAME, config, max_rank)
    factors = {name: shape for name, shape, _ in stored_tensors(folder / WEIGHTS_NAME)}
    if any(model.glob("*.safetensors")):
        _check_layers(factors, stored_shapes(model), folder / WEIGHTS_NAME, model)


def check_adapters(config: EngineConfig, key: str = "lora_modules") -> None:
    """Check all adapters of a config with the checkpoint in its folder.

    Args:
        config: whose folders are found.
        key: of the adapters, for errors.

    Raises:
        ValueError: as `check_adapter`; names the key.
    """
    for name, folder in config.lora_modules.items():
        try:
            check_adapter(Path(folder), Path(config.model_path), config.max_lora_rank)
        except ValueError as error:
            raise ValueError(f"{key}.{name}: {error}") from None


def _check_rank(path: Path, config: Mapping[str, Any], max_rank: int) -> None:
    if config.get("peft_type") != "LORA":
        raise ValueError(f"{path}: peft_type must be 'LORA', got {config.get('peft_type')!r}")
    patterns = config.get("rank_pattern") or {}
    ranks = [config.get("r"), *(patterns.values() if isinstance(patterns, dict) else [None])]
    for rank in ranks:
        if not isinstance(rank, int) or rank < 1:
            raise ValueError(f"{path}: its ranks (r) must be integers from 1 on, got {rank!r}")
    if (rank := max(ranks)) > max_rank:
        raise ValueError(f"{path}: rank r must be at most max_lora_rank, {max_rank}, got {rank}")


def _check_layers(factors: _Shapes, layers: _Shapes, path: Path, model: Path) -> None:
    """Compare each factor with its layer, where the layer is stored as one matrix."""
    for name, shape in factors.items():
        layer, _, factor = name.removeprefix(_PREFIX).rpartition(".lora_")
        if not layer:
            raise ValueError(f"{path}: only factors of LoRA are served, got {name!r}")
        whole = layers.get(f"{layer}.weight")
        if whole is None:
            if not any(each.startswith(f"{layer}.") for each in layers):
                raise ValueError(f"{path}: it changes {layer}, which {model} has not")
            continue  # packed: the engine compares it
        side, axis = ("inputs", 1) if factor.startswith("A") else ("outputs", 0)
        if len(whole) == 2 == len(shape) and shape[axis] != whole[axis]:
            raise ValueError(
                f"{path}: it is for another model: {layer} has {whole[axis]} {side} in {model}, "
                f"got {shape[axis]}",
            )
