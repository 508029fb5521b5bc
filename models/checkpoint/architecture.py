"""Decides from a checkpoint's config whether its architecture is served, before weights are read.

A model is served if its KV cache has one key and one value per token, layer and head. It must also
read them by position. A session is then rolled back by forgetting positions, and sessions of any
lengths share a pass. Layers may see all positions or a window of the last ones. Everything else is
refused here by name; wrong text is worse than no text.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterable
from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedConfig

from models.checkpoint.float8 import as_stored
from models.checkpoint.packed import is_packed, refuse_packed
from models.config import EngineConfig
from models.parallel.plan import refuse_unshardable

_SERVED_LAYERS = frozenset({"full_attention", "sliding_attention"})
_LAYER_REASONS = {
    "linear_attention": "layers with a recurrent state, which cannot be rolled back by length",
    "hybrid": "layers with a recurrent state, which cannot be rolled back by length",
    "conv": "convolution layers, whose state cannot be rolled back by length",
    "chunked_attention": "attention in chunks, which begins anew at every chunk",
}
_STATEFUL_LAYERS = frozenset(_LAYER_REASONS) - {"chunked_attention"}
# Config fields that, where they are set, change attention in a way that is not built.
_REFUSED_FIELDS = {
    "use_bidirectional_attention": "attention to later positions",
    "num_kv_shared_layers": "layers that share the keys of others",
    "kv_lora_rank": "multi-head latent attention, whose keys and values differ in size",
    "add_cross_attention": "attention to an encoder",
}
# Types whose own code does to attention what neither their config nor their calls show: each of
# them gave other logits than its eager attention when it was tried.
_REFUSED_TYPES = {
    "diffllama": "differential attention, which subtracts the heads of a pair from each other",
    "doge": "attention with a mask that depends on the values",
    "hrm_text": "layers that are run several times per token",
    "moshi": "several streams of tokens",
}


def refuse_unsupported(hf_config: PreTrainedConfig, config: EngineConfig) -> None:
    """Check everything that can be known before weights are read.

    Raises:
        ValueError: names the model type and what it needs that is not served, or the limit of the
            config that is above the checkpoint's.
    """
    try:
        is_own = config.engine == "own"
        reason = unsupported_feature(hf_config) if is_own else unsupported_by_vllm(hf_config)
    except (AttributeError, TypeError, KeyError, ZeroDivisionError) as error:
        reason = f"its config.json is not understood ({type(error).__name__}: {error})"
    if reason:
        raise ValueError(f"model type {hf_config.model_type!r} cannot be served: {reason}")
    text = hf_config.get_text_config()
    if is_packed(hf_config):
        refuse_packed(config, hf_config)
    if is_own:
        refuse_unshardable(hf_config, config.tensor_parallel_size)
        as_stored(config, hf_config)
    longest = getattr(text, "max_position_embeddings", None)
    if longest is not None and config.max_model_len > longest:
        raise ValueError(
            f"max_model_len must be at most the checkpoint's max_position_embeddings ({longest}), "
            f"got {config.max_model_len}"
        )


def unsupported_feature(hf_config: PreTrainedConfig) -> str:
    """Why a model of this config cannot be served; empty if it can."""
    return _unsupported_class(hf_config) or _unsupported_config(hf_config.get_text_config())


def unsupported_by_vllm(hf_config: PreTrainedConfig) -> str:
    """Why sessions of a model cannot be served where vLLM computes it; empty if they can.

    vLLM itself says which architectures it has, when the model is loaded.
    """
    if hf_config.is_encoder_decoder:
        return "it has an encoder and a decoder"
    text = hf_config.get_text_config()
    if getattr(text, "kv_lora_rank", None):
        return f"{_REFUSED_FIELDS['kv_lora_rank']} (kv_lora_rank): passes are not built for it"
    for kind in sorted(set(getattr(text, "layer_types", None) or ())):
        if kind in _STATEFUL_LAYERS:
            return f"layers of type {kind}: {_LAYER_REASONS[kind]}"
    return ""


def _unsupported_class(hf_config: PreTrainedConfig) -> str:
    if hf_config.model_type in _REFUSED_TYPES:
        return _REFUSED_TYPES[hf_config.model_type]
    if hf_config.is_encoder_decoder:
        return "it has an encoder and a decoder"
    model_class: Any = AutoModelForCausalLM._model_mapping.get(type(hf_config), None)
    if model_class is None:
        return "transformers has no causal language model of this type"
    if model_class._is_stateful:
        return "its layers keep a recurrent state, which cannot be rolled back by length"
    if not model_class._supports_attention_backend:
        return "it does not use transformers' attention interface"
    if "position_ids" not in inspect.signature(model_class.forward).parameters:
        return "its forward takes no position_ids, so sessions cannot share a pass"
    return ""


def _unsupported_config(text: PreTrainedConfig) -> str:
    others = sorted(set(getattr(text, "layer_types", None) or ()) - _SERVED_LAYERS)
    if others:
        reason = _LAYER_REASONS.get(others[0])
        return f"layers of type {', '.join(others)}" + (f": {reason}" if reason else "")
    for field, reason in _REFUSED_FIELDS.items():
        if getattr(text, field, None):
            return f"{reason} ({field})"
    if _num_head_shapes(text) > 1:
        return "layers whose heads differ in number or size"
    if "dynamic" in _rope_types(getattr(text, "rope_parameters", None)):
        return "dynamic rope, which lets the longest session change the others"
    return ""


def _num_head_shapes(text: PreTrainedConfig) -> int:
    """Distinct shapes of the layers' keys, where a config may give each layer its own."""
    layers = getattr(text, "per_layer_config", None) or [text]
    shapes = {
        (getattr(layer, "head_dim", None), getattr(layer, "num_key_value_heads", None))
        for layer in layers
    }
    return len(shapes)


def _rope_types(parameters: Any) -> Iterable[str]:
    """Rope variants in use: one set of parameters, or one for each type of layer."""
    if not isinstance(parameters, dict):
        return []
    nested = [part for part in parameters.values() if isinstance(part, dict)]
    return [str(part.get("rope_type")) for part in (parameters, *nested)]
