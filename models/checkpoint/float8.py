"""Checkpoints that were published in float8 ("FP8-dynamic"), and the scales of their layers.

Such a folder's linear layers hold float8_e4m3 numbers and one scale for each output, in a tensor
`weight_scale` beside `weight`. Its config says so in the words of compressed-tensors. The inputs'
scales are found row by row when they come (`models/gpu/fp8.py`). A GPU reads the numbers as they
are stored, so that a model never takes more memory there. Others read them like any numbers,
because every one of float8 is one of bfloat16 and float16 as well. Then they are given their scales
here. Layers keep the scales apart on a GPU, so that products are of the published numbers.
Elsewhere no product takes float8, so they are multiplied. Groups of few bits are read elsewhere
(`packed.py`). Anything else that is quantised is refused by name.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from models.checkpoint.packed import is_packed, packing_of
from models.checkpoint.stored_weights import float8_shapes
from models.config import EngineConfig
from models.layers.quantization import can_round_to_fp8

SCALES = "weight_scale"  # name of a layer's scales in the files
# The config's entries for the layers, by key.
_WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel", "symmetric": True}
_INPUTS = {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True}
_FORMATS = (None, "float-quantized", "naive-quantized")


def is_float8(hf_config: PreTrainedConfig) -> bool:
    """Return whether the checkpoint's layers are in float8; False if they are not quantised.

    Raises:
        ValueError: they are quantised in another way; names the method.
    """
    terms = packing_of(hf_config)
    if not terms or is_packed(hf_config):
        return False
    method = terms.get("quant_method")
    if method == "compressed-tensors" and _is_dynamic(terms):
        return True
    raise ValueError(
        f"the checkpoint is quantised already (quantization_config with quant_method {method!r}), "
        "and such weights are not read; take the original, with quantization: q8 (on a GPU fp8) "
        "if it shall be rounded when it is loaded, or one published as FP8-dynamic by "
        "compressed-tensors, or on a CPU one of awq or gptq"
    )


def _is_dynamic(terms: dict[str, Any]) -> bool:
    groups = terms.get("config_groups") or {}
    return (
        bool(groups)
        and terms.get("format") in _FORMATS
        and not terms.get("kv_cache_scheme")
        and all(
            group.get("targets") == ["Linear"]
            and _says(group.get("weights"), _WEIGHTS)
            and _says(group.get("input_activations"), _INPUTS)
            and not group.get("output_activations")
            for group in groups.values()
        )
    )


def _says(terms: dict[str, Any] | None, wanted: dict[str, Any]) -> bool:
    return terms is not None and all(terms.get(key) == value for key, value in wanted.items())


def kept_whole(hf_config: PreTrainedConfig, name: str) -> bool:
    """Return whether the config excludes the layer `name` from float8."""
    terms: Any = getattr(hf_config, "quantization_config", None) or {}
    return any(
        re.match(pattern.removeprefix("re:"), name)
        if pattern.startswith("re:")
        else pattern == name
        for pattern in terms.get("ignore") or ()
    )


def as_stored(config: EngineConfig, hf_config: PreTrainedConfig) -> EngineConfig:
    """Return the config with the quantization that the checkpoint brings along.

    Raises:
        ValueError: it brings one that is not read, or that the config does not go with.
    """
    if not is_float8(hf_config) or torch.device(config.device).type == "cpu":
        return config
    if config.batch_invariant:
        raise ValueError(
            f"batch_invariant is not for weights in float8, which model_path "
            f"{config.model_path!r} holds"
        )
    if config.quantization not in (None, "fp8"):
        raise ValueError(
            f"quantization {config.quantization} is not for weights in float8, which model_path "
            f"{config.model_path!r} holds; leave it out"
        )
    return config.model_copy(update={"quantization": "fp8"})


def unscaled(hf_config: PreTrainedConfig) -> PreTrainedConfig:
    """Return the config without its quantization, to read the weights as they are."""
    if not hasattr(hf_config, "quantization_config"):
        return hf_config
    plain = copy.deepcopy(hf_config)
    del plain.quantization_config
    return plain


@contextmanager
def kept_as_stored(folder: Path, num_ranks: int) -> Iterator[None]:
    """Have transformers read the folder's float8 as it is, and not as the model's type.

    It does nothing if a layer, or a rank's part of it, has sizes that no product takes.

    Raises:
        ValueError: a file cannot be read.
    """
    shapes = float8_shapes(folder)
    fit = all(_fits(shape, 1) and _fits(shape, num_ranks) for shape in shapes.values())
    plan = {f"^{re.escape(name)}$": torch.float8_e4m3fn for name in shapes if fit}
    name = "_get_dtype_plan"
    kept = getattr(PreTrainedModel, name)
    setattr(PreTrainedModel, name, lambda model, dtype: kept(model, dtype) | plan)
    try:
        yield
    finally:
        setattr(PreTrainedModel, name, kept)


def _fits(shape: tuple[int, ...], num_ranks: int) -> bool:
    """Return whether a product takes a layer that is divided among ranks along either size."""
    return len(shape) == 2 and can_round_to_fp8(shape[0] // num_ranks, shape[1] // num_ranks)


def give_scales(
    model: PreTrainedModel, files: Sequence[Path], rank: int, *, are_kept: bool
) -> None:
    """Give the layers of a model, or of a rank's part of it, the scales that the files hold.

    Args:
        model: with the numbers of its layers as they are stored.
        files: of the checkpoint, in safetensors.
        rank: whose part it is.
        are_kept: whether layers keep scales, [outputs] float32, as `scales`; else their weights
            are multiplied.

    Raises:
        ValueError: scales do not fit their layer, or are of something that is no linear layer.
    """
    modules = dict(model.named_modules())
    for name, scales in _stored_scales(files):
        linear: Any = modules.get(name)
        linear = getattr(linear, "linear", linear)  # a rank's part, in what exchanges it
        if type(linear) is not nn.Linear:
            raise ValueError(f"{name} has a scale, but is no linear layer that is known here")
        own = scales.flatten().float()
        num_outputs = len(linear.weight)
        if len(own) != num_outputs:
            own = own[rank * num_outputs : (rank + 1) * num_outputs]
        if len(own) != num_outputs:
            raise ValueError(f"{name} has {len(scales)} scales for {num_outputs} outputs")
        own = own.to(linear.weight.device)
        if are_kept:
            linear.scales = own  # no parameter: those of a model are of one type
        else:
            linear.weight.data = (linear.weight.float() * own.unsqueeze(1)).to(linear.weight.dtype)


def _stored_scales(files: Sequence[Path]) -> Iterator[tuple[str, Tensor]]:
    """Names of layers, and scales of all their outputs."""
    for path in files:
        with safe_open(path, framework="pt") as file:
            for key in file.keys():  # noqa: SIM118  # no mapping
                name, _, kind = key.rpartition(".")
                if kind == SCALES:
                    yield name, file.get_tensor(key)
