"""Loads checkpoints whose linear layers are kept in groups of few bits, as they are stored.

Such a folder is an ordinary one but for these layers (`models/packed_form.py`), or one of AWQ or
GPTQ. Its config.json says so under quantization_config. Nothing is multiplied out: the layers hold
their codes until the back-end takes them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel

from models.attention.interface import ATTENTION_NAME
from models.checkpoint.packed_formats import AWQ, GPTQ, check_terms, read_other
from models.checkpoint.packed_shapes import packed_shapes, whole_shapes
from models.checkpoint.stored_weights import weight_files
from models.config import EngineConfig
from models.files import read_json
from models.layers.family import refuse_other_families
from models.layers.grouped import GroupedEmbedding, GroupedLinear, StoredGroups, stored_groups
from models.layers.shapes import shapes_of
from models.packed_form import GROUP, METHOD


def is_packed(hf_config: PreTrainedConfig) -> bool:
    """Return whether the checkpoint's layers are in groups."""
    return packing_of(hf_config).get("quant_method") in (METHOD, AWQ, GPTQ)


def packing_of(hf_config: PreTrainedConfig) -> dict[str, Any]:
    """Return what the checkpoint says of how its weights are rounded; empty: they are not."""
    found: Any = getattr(hf_config, "quantization_config", None) or {}
    terms: dict[str, Any] = found if isinstance(found, dict) else found.to_dict()
    return terms


def refuse_packed(config: EngineConfig, hf_config: PreTrainedConfig) -> None:
    """Check that a config goes with the checkpoint's weights in groups, and these with our own.

    Raises:
        ValueError: it does not; names the key.
    """
    terms = packing_of(hf_config)
    if terms["quant_method"] != METHOD:
        if config.engine == "vllm":  # which reads them by itself
            return
        check_terms(terms)
    elif terms.get("group_size") != GROUP:
        raise ValueError(
            f"quantization_config.group_size must be {GROUP}, got {terms.get('group_size')!r}"
        )
    by_vllm = "" if terms["quant_method"] == METHOD else "; engine vllm reads them elsewhere"
    wanted: dict[str, tuple[object, ...]] = {
        "engine": ("own",),
        "device": ("cpu",),
        "dtype": ("bfloat16", "float32"),
        "attention": ("auto",),
        "quantization": (None,),
        "tensor_parallel_size": (1,),
    }
    for key, values in wanted.items():
        if (got := getattr(config, key)) not in values:
            raise ValueError(
                f"model_path {config.model_path!r} keeps weights in groups, served for {key} "
                f"{' or '.join(map(str, values))}, got {got}{by_vllm}"
            )


def refuse_groups(path: str) -> None:
    """Check that transformers can read the weights of a folder: it skips groups without an error.

    Raises:
        ValueError: they are in groups.
    """
    file = Path(path) / "config.json"
    terms = read_json(file).get("quantization_config") if file.is_file() else None
    if isinstance(terms, dict) and terms.get("quant_method") == METHOD:
        raise ValueError(f"{path} keeps weights in groups of few bits: give a folder of whole ones")


def load_packed(
    hf_config: PreTrainedConfig, config: EngineConfig, terms: Mapping[str, Any]
) -> PreTrainedModel:
    """Load a checkpoint with weights in groups.

    Args:
        hf_config: of the model, without its quantization.
        config: what to load.
        terms: its quantization, as of `packing_of`.

    Raises:
        ValueError: its layers are of no known family, or the files do not hold its weights.
    """
    dtype = getattr(torch, config.dtype)
    model = shapes_of(hf_config, dtype, ATTENTION_NAME)
    refuse_other_families(model, "weights in groups")
    tensors = dict(_tensors(Path(config.model_path)))
    shapes = {name: tuple(one.shape) for name, one in tensors.items()}
    is_own = terms["quant_method"] == METHOD
    grouped = {
        name: stored_groups(tensors, name) if is_own else read_other(tensors, name, terms)
        for name in packed_shapes(shapes)
    }
    whole = {name: tensors[name].to(dtype) for name in whole_shapes(shapes) if name in tensors}
    for name, stored in grouped.items():
        _replace(model, name, stored, whole.pop(f"{name}.bias", None), dtype)
    model.load_state_dict(whole, strict=False, assign=True)
    _tie(model, dtype)
    inner: Any = model.model
    inner.rotary_emb = type(inner.rotary_emb)(config=hf_config)
    if left := [name for name, one in model.named_parameters() if one.is_meta]:
        raise ValueError(
            f"model_path {config.model_path!r} lacks {len(left)} weights that config.json means, "
            f"first {left[0]!r}"
        )
    return model.eval()


def _tensors(folder: Path) -> Iterator[tuple[str, Tensor]]:
    for path in weight_files(folder):
        with safe_open(path, framework="pt") as file:
            for name in file.keys():  # noqa: SIM118  # no mapping
                yield name, file.get_tensor(name)


def _replace(
    model: nn.Module, name: str, stored: StoredGroups, bias: Tensor | None, dtype: torch.dtype
) -> None:
    """Put a layer with this weight in the place of the one that the config means.

    Raises:
        ValueError: it means none of this shape.
    """
    try:
        found: Any = model.get_submodule(name)
    except AttributeError:
        raise ValueError(f"the model has no layer {name}, whose weight is stored") from None
    shape = len(stored.codes), stored.num_inputs
    if tuple(found.weight.shape) != shape:
        raise ValueError(
            f"{name} has the shape {list(shape)}, config.json means {list(found.weight.shape)}"
        )
    if isinstance(found, nn.Embedding):
        made: nn.Module = GroupedEmbedding(stored, dtype)
    else:
        made = GroupedLinear(stored, bias, dtype)
    parent, _, own = name.rpartition(".")
    setattr(model.get_submodule(parent), own, made)


def _tie(model: Any, dtype: torch.dtype) -> None:
    """Give the output layer the embedding's weight, where the config says that they share one."""
    if not model.config.tie_word_embeddings:
        return
    embedding = model.get_input_embeddings()
    if isinstance(embedding, GroupedEmbedding):
        model.set_output_embeddings(GroupedLinear(embedding.stored, None, dtype))
    else:
        model.get_output_embeddings().weight = embedding.weight
