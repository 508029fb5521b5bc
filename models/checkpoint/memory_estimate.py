"""Estimates what a model takes on each rank, from its config alone: nothing is read or allocated.

The layers are made on torch's "meta" device, where tensors have shapes and no storage. They are
counted as `models/checkpoint/loader.py` will keep them. Importing transformers and torch is what
takes the time.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedConfig
from transformers.pytorch_utils import Conv1D

from models.checkpoint.architecture import refuse_unsupported
from models.checkpoint.float8 import as_stored, kept_whole, unscaled
from models.checkpoint.loader import key_sizes, kv_bytes_per_token, read_config
from models.checkpoint.packed import is_packed
from models.checkpoint.packed_shapes import as_packed, kept_bytes, whole_shapes
from models.checkpoint.stored_weights import (
    num_stored_bytes,
    num_stored_parameters,
    stored_shapes,
)
from models.config import GROUPED, EngineConfig, QuantizationName
from models.files import naming
from models.heads.config import CHECKPOINT, heads_kind, num_key_layers
from models.heads.draft_ids import Words
from models.heads.eagle3 import Eagle3Parts
from models.heads.eagle3_folder import read_eagle3
from models.heads.medusa_folder import read_heads
from models.heads.mtp import MtpParts, read_mtp
from models.heads.mtp_checkpoint import read_own_mtp
from models.layers.family import can_take_apart, refuse_other_families
from models.layers.groups import TABLE_BITS, Bits, grouped_bytes
from models.layers.quantization import FP8_SCALE_BYTES, can_round_to_fp8, int8_bytes
from models.layers.shapes import shapes_of
from models.parallel.layers import refuse_undivided
from models.parallel.plan import layer_plan

# Styles of transformers' plans by which a rank keeps a share of a tensor; all others are copied.
_DIVIDED = ("colwise", "rowwise")


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryEstimate:
    """Sizes of one model under one config; bytes are those of each rank."""

    num_parameters: int  # the whole model's, shared ones counted once
    weight_bytes: int
    bits_a_weight: float  # on the average, scales included and what drafts left out; 0: unknown
    kv_bytes_per_token: int
    quantization: QuantizationName | None  # the config's, or what the weights are stored in


def memory_estimate(config: EngineConfig) -> MemoryEstimate:
    """Estimate the sizes of the model that `config` names.

    Raises:
        ValueError: there is no checkpoint, or it cannot be served like this; with the reason.
    """
    asked = config.quantization
    config = as_packed(config)
    hf_config = read_config(config.model_path)
    refuse_unsupported(hf_config, config)
    if config.engine == "vllm":
        return _vllm_estimate(config, hf_config)
    config = as_stored(config, hf_config)
    with naming(Path(config.model_path) / "config.json"):
        model = shapes_of(unscaled(hf_config), getattr(torch, config.dtype))
    itemsize = getattr(torch, config.dtype).itemsize
    sizes = key_sizes(hf_config, config.tensor_parallel_size)
    if is_packed(hf_config):
        refuse_other_families(model, "weights in groups")
        weight_bytes = kept_bytes(stored_shapes(Path(config.model_path)), itemsize)
    else:
        weight_bytes = _weight_bytes(model, config, itemsize, partial(kept_whole, hf_config))
    num_parameters = sum(weight.numel() for weight in model.parameters())
    return MemoryEstimate(
        num_parameters=num_parameters,
        weight_bytes=weight_bytes + _heads_bytes(model, config),
        bits_a_weight=8 * weight_bytes * config.tensor_parallel_size / num_parameters,
        kv_bytes_per_token=kv_bytes_per_token(sizes, itemsize, num_key_layers(config.heads)),
        quantization=asked or config.quantization,
    )


def vllm_weights(config: EngineConfig, hf_config: PreTrainedConfig) -> tuple[int, int]:
    """Return bytes and numbers of a rank's share of the weights, as vLLM keeps those of the files.

    Both are 0 where the files are not here.

    Raises:
        ValueError: a file cannot be read.
    """
    folder = Path(config.model_path)
    if not folder.is_dir() or not any(folder.glob("*.safetensors")):
        return 0, 0
    itemsize = getattr(torch, config.dtype).itemsize
    if is_packed(hf_config):  # a word of 32 bits has several
        num_weights = sum(map(math.prod, whole_shapes(stored_shapes(folder)).values()))
    else:
        num_weights = num_stored_parameters(folder)
    stored = num_stored_bytes(folder, itemsize), num_weights
    num_bytes, num_weights = (one // config.tensor_parallel_size for one in stored)
    return num_bytes, num_weights


def _vllm_estimate(config: EngineConfig, hf_config: PreTrainedConfig) -> MemoryEstimate:
    itemsize = getattr(torch, config.dtype).itemsize
    text = hf_config.get_text_config()
    if latent := getattr(text, "kv_lora_rank", None):  # one latent for all heads, on every rank
        per_token = text.num_hidden_layers * (latent + text.qk_rope_head_dim) * itemsize
    else:
        per_token = kv_bytes_per_token(key_sizes(hf_config, config.tensor_parallel_size), itemsize)
    weight_bytes, num_weights = vllm_weights(config, hf_config)
    return MemoryEstimate(
        num_parameters=num_weights * config.tensor_parallel_size,
        weight_bytes=weight_bytes,
        bits_a_weight=8 * weight_bytes / max(1, num_weights),
        kv_bytes_per_token=per_token,
        quantization=None,
    )


def _heads_bytes(model: Any, config: EngineConfig) -> int:
    """Return the bytes of heads in the target's process; of all ranks the leader holds the most."""
    if config.heads is None:
        return 0
    num_ranks, output = config.tensor_parallel_size, model.get_output_embeddings().weight
    words = Words(0, len(output) // num_ranks, len(output))
    if config.heads == CHECKPOINT:
        own = Path(config.model_path)
        is_there = any(own.glob("*.safetensors"))  # else it is still to be fetched
        return _mtp_bytes(read_own_mtp(own, model) if is_there else MtpParts(model), model, words)
    folder = Path(config.heads)
    kind = heads_kind(folder)
    if kind == "mtp":
        return _mtp_bytes(read_mtp(folder, model), model, words)
    if kind == "eagle3":
        return _eagle3_bytes(read_eagle3(folder, model), model, words, config)
    return read_heads(folder, output[: words.num], words).num_bytes


def _mtp_bytes(parts: MtpParts, model: Any, words: Words) -> int:
    parts.vocab_size, parts.draft_ids = words.num, words.places(parts.draft_ids)
    return parts.num_bytes - _elsewhere(parts.layer, model, words.total // words.num)


def _eagle3_bytes(parts: Eagle3Parts, model: Any, words: Words, config: EngineConfig) -> int:
    num_ranks = config.tensor_parallel_size
    if num_ranks == 1:
        return parts.num_bytes
    layer, head = parts.layers[0], parts.lm_head.weight
    name = f"heads {config.heads!r}"
    refuse_undivided(name, layer, layer_plan(model.tp_plan), num_ranks)
    ids = words.places(parts.draft_ids)
    num_elsewhere = len(head) - (words.num if ids is None else len(ids))
    taken = parts.num_bytes - _elsewhere(layer, model, num_ranks) - num_elsewhere * head[0].nbytes
    if parts.embed_tokens is not None:
        whole: int = parts.embed_tokens.weight.nbytes
        taken -= whole - whole // num_ranks
    return taken


def _elsewhere(layer: nn.Module, model: Any, num_ranks: int) -> int:
    """Bytes of a layer that is divided like the model's that other ranks have."""
    if num_ranks == 1:
        return 0
    plan = layer_plan(model.tp_plan)
    divided = [weight for name, weight in layer.named_parameters() if _is_divided(name, plan)]
    return sum(weight.nbytes - weight.nbytes // num_ranks for weight in divided)


def _weight_bytes(
    model: Any, config: EngineConfig, itemsize: int, is_whole: Callable[[str], bool]
) -> int:
    world_size = config.tensor_parallel_size
    if config.quantization == "int8":
        return _rounded_model_bytes(model, world_size, itemsize, None)
    if config.quantization in GROUPED:
        return _rounded_model_bytes(model, world_size, itemsize, GROUPED[config.quantization])
    whole = _rank_bytes(model, world_size, itemsize)
    if config.quantization is None:
        return whole
    return whole - _saved_by_fp8(model, world_size, itemsize, is_whole)


def _saved_by_fp8(
    model: Any, world_size: int, itemsize: int, is_whole: Callable[[str], bool]
) -> int:
    """Return the bytes that rounding the layers saves a rank; each rank counts all scales."""
    plan: Any = model.tp_plan if world_size > 1 else {}
    saved = 0
    for name, layer in model.named_modules():
        is_rounded = type(layer) is nn.Linear and layer is not model.get_output_embeddings()
        if is_rounded and can_round_to_fp8(*layer.weight.shape) and not is_whole(name):
            num_ranks = world_size if _is_divided(f"{name}.weight", plan) else 1
            saved += layer.weight.numel() // num_ranks * (itemsize - 1)
            saved -= len(layer.weight) * FP8_SCALE_BYTES
    return saved


def _rank_bytes(model: nn.Module, world_size: int, itemsize: int) -> int:
    plan: Any = model.tp_plan if world_size > 1 else {}
    total = 0
    for name, weight in model.named_parameters():
        is_shared = _is_divided(name, plan)
        total += weight.numel() // (world_size if is_shared else 1)
    return total * itemsize


def _is_divided(name: str, plan: dict[str, str]) -> bool:
    """Plans name layers, or parameters, with `*` in place of a layer's number."""
    pattern = re.sub(r"(?<=\.)\d+(?=\.)", "*", name)
    layer, _, kind = pattern.rpartition(".")
    style = plan.get(pattern) or plan.get(layer) or ""
    if kind == "bias" and "rowwise" in style:
        return False  # added to the sum, which is whole on every rank
    return any(divided in style for divided in _DIVIDED)


def _rounded_model_bytes(model: Any, world_size: int, itemsize: int, bits: Bits | None) -> int:
    """Linear layers rounded; what is left whole, embeddings that share a weight included.

    Their weights are in groups of so many bits, or with `None` 8 bits with a scale an output.
    """
    plan: Any = model.tp_plan if world_size > 1 else {}
    linears = {name: one for name, one in model.named_modules() if type(one) in (nn.Linear, Conv1D)}
    taken = {id(one.weight) for one in linears.values()}
    embedded = {id(one.weight) for one in model.modules() if isinstance(one, nn.Embedding)}
    output = model.get_output_embeddings()
    if bits is not None and id(output.weight) in embedded and can_take_apart(model):
        embedded.clear()  # read out of the output layer
        tables = {id(output)}
    else:
        tables = set()
    biases = {id(one.bias) for one in linears.values() if one.bias is not None}
    total = sum(
        weight.numel() * itemsize // (world_size if _is_divided(name, plan) else 1)
        for name, weight in model.named_parameters()
        if id(weight) in embedded or (id(weight) not in taken and id(weight) not in biases)
    )
    for name, layer in linears.items():
        num_ranks = world_size if _is_divided(f"{name}.weight", plan) else 1
        its_bits = TABLE_BITS if id(layer) in tables else bits
        total += _rounded_layer_bytes(layer, itemsize, num_ranks, its_bits)
    return total


def _rounded_layer_bytes(layer: Any, itemsize: int, num_ranks: int, bits: Bits | None) -> int:
    """Return the bytes of a rank's layer; each rank counts the scales of all outputs."""
    rows, columns = layer.weight.shape
    num_outputs, num_inputs = (columns, rows) if type(layer) is Conv1D else (rows, columns)
    has_bias = layer.bias is not None
    if bits is None:
        return int8_bytes(num_outputs, num_inputs // num_ranks, itemsize, has_bias=has_bias)
    return grouped_bytes(num_outputs, num_inputs, bits) + num_outputs * itemsize * has_bias
