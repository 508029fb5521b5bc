"""Checks that an architecture supports tensor parallelism, before weights are read.

The check reads the model's config. The plan is transformers' own: which layers of a model type are
cut, and how. Key heads, and with them the KV storage, are divided if the plan cuts the key
projection by columns.
"""

from __future__ import annotations

from typing import Any

from transformers import AutoModelForCausalLM, PreTrainedConfig

# Projections whose output holds the keys, alone or together with others.
_KEY_PROJECTIONS = ("k_proj", "qkv_proj", "query_key_value")
_FEED_FORWARD_SIZES = ("intermediate_size", "moe_intermediate_size")


def refuse_unshardable(hf_config: PreTrainedConfig, world_size: int) -> None:
    """Check that `world_size` ranks can share a model of this config.

    Raises:
        ValueError: names the model type, tensor_parallel_size, and the size it does not divide or
            the plan that the architecture lacks.
    """
    if world_size == 1:
        return
    plan = tensor_parallel_plan(hf_config)
    if not plan:
        raise ValueError(
            f"model type {hf_config.model_type!r} cannot be served with tensor_parallel_size "
            f"{world_size}: transformers has no tensor-parallel plan (base_model_tp_plan) for it"
        )
    for name, size in _divided_sizes(hf_config.get_text_config(), plan).items():
        if size % world_size:
            raise ValueError(
                f"model type {hf_config.model_type!r} cannot be served with "
                f"tensor_parallel_size {world_size}: it does not divide {name}, {size}"
            )


def tensor_parallel_plan(hf_config: PreTrainedConfig) -> dict[str, str]:
    """Style by module name of the model type's own plan; empty if it has none."""
    base: dict[str, str] | None = getattr(hf_config.get_text_config(), "base_model_tp_plan", None)
    if not base:
        return {}
    model_class: Any = AutoModelForCausalLM._model_mapping.get(type(hf_config), None)
    return {**base, **(getattr(model_class, "_tp_plan", None) or {})}


def layer_plan(plan: dict[str, str]) -> dict[str, str]:
    """Style by module name within one decoder layer, of the plan of a whole model."""
    inner = [(name.partition("layers.*."), style) for name, style in plan.items()]
    return {name: style for (_, found, name), style in inner if found}


def divides_heads(plan: dict[str, str]) -> bool:
    """Return whether each rank has only its share of the attention heads."""
    return any(
        name.rpartition(".")[2] in _KEY_PROJECTIONS and style == "colwise"
        for name, style in plan.items()
    )


def _divided_sizes(text: PreTrainedConfig, plan: dict[str, str]) -> dict[str, int]:
    names = ["vocab_size"]
    if divides_heads(plan):
        names += ["num_attention_heads", "num_key_value_heads"]
    names += _FEED_FORWARD_SIZES
    sizes = {name: getattr(text, name, None) for name in names}
    return {name: size for name, size in sizes.items() if isinstance(size, int)}
