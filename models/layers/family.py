"""The Llama family, by the names that its parts have in transformers.

Shared by back-ends that take a model apart and compute its layers themselves. `cpu/fused_decoder`
uses compiled kernels, `gpu/decoder` fewer and larger operations of torch.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from models.layers.grouped import GroupedLinear, Weighted, as_tensor, weight_of
from models.layers.groups import GroupedWeight, joined_groups

# Layers of these types differ in biases, windows, and query and key norms only.
_FAMILY = frozenset({"llama", "mistral", "qwen2", "qwen3"})


def can_take_apart(model: PreTrainedModel) -> bool:
    """Return whether the model is of a type whose layers are known."""
    config: Any = model.config
    is_known = config.model_type in _FAMILY and type(model).__name__.endswith("ForCausalLM")
    # Kernels go by the type of the storage: layers that keep float32 norms are left alone.
    types = {parameter.dtype for parameter in model.parameters()}
    has_one_type = len(types - {torch.float8_e4m3fn}) == 1
    if not is_known or config.hidden_act != "silu" or not has_one_type:
        return False
    inner: Any = model.model
    # Layers keep their own code if ranks gather columns (there are fewer key heads than ranks).
    attention, mlp = inner.layers[0].self_attn, inner.layers[0].mlp
    columns = attention.q_proj, attention.k_proj, attention.v_proj, mlp.gate_proj, mlp.up_proj
    if any(type(linear) not in (nn.Linear, GroupedLinear) for linear in columns):
        return False
    cos, _ = rotary_tables(inner.rotary_emb, 1, like_of(model))
    return bool(cos.shape[1] == attention.head_dim)  # else only a part of a head is rotated


def refuse_other_families(model: PreTrainedModel, what: str) -> None:
    """Check that a model is of the family, for `what` needs it.

    Raises:
        ValueError: it is not.
    """
    if not can_take_apart(model):
        config: Any = model.config
        raise ValueError(
            f"{what} are served for Llama, Mistral, Qwen2 and Qwen3 only so far, "
            f"not for {config.model_type}"
        )


def like_of(model: PreTrainedModel) -> Tensor:
    """Return a tensor of the model's type and device, for its rotary embedding."""
    return torch.empty(1, 1, 1, dtype=model.dtype, device=model.device)


def rotary_tables(rotary: Any, num_positions: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """Cosine and signed sine of all positions, [num_positions, D].

    transformers adds rotate_half(x) * sin, where rotate_half swaps the halves and negates the
    first. Here the halves are swapped and the sine of the first half is negative.
    """
    positions = torch.arange(num_positions, device=like.device)
    cos, sin = rotary(like, position_ids=positions.unsqueeze(0))
    cos, sin = cos[0].contiguous(), sin[0].contiguous().clone()
    sin[:, : sin.shape[1] // 2].neg_()
    return cos, sin


def joined_weight(*linears: Weighted) -> tuple[Tensor | GroupedWeight, Tensor | None]:
    """Weight and bias of one product for linear layers of the same input.

    It is in groups if all of theirs are.
    """
    weights = [weight_of(linear) for linear in linears]
    if len(linears) == 1:  # as it is: no copy
        bias = linears[0].bias
        return weights[0], None if bias is None else bias.detach()
    grouped = [weight for weight in weights if isinstance(weight, GroupedWeight)]
    weight: Tensor | GroupedWeight
    if len(grouped) == len(weights):
        weight = joined_groups(grouped)
    else:
        weight = torch.cat([as_tensor(weight) for weight in weights])
    biases = [linear.bias for linear in linears]
    there = [bias for bias in biases if bias is not None]
    if not there:
        return weight, None
    parts = [  # of the biases' type: weights may be in float8
        there[0].new_zeros(linear.out_features) if bias is None else bias.detach()
        for bias, linear in zip(biases, linears, strict=True)
    ]
    return weight, torch.cat(parts)


def joined_scales(*linears: nn.Linear) -> Tensor | None:
    """Return the scales of the joined product, [outputs]; None if no weight is in float8.

    Raises:
        ValueError: some are, and some are not.
    """
    scales: list[Any] = [getattr(linear, "scales", None) for linear in linears]
    if all(each is None for each in scales):
        return None
    if any(each is None for each in scales):
        raise ValueError(
            "of linear layers that share a product (query, key and value; gate and up) some are "
            "stored in float8 and some are not; this checkpoint cannot be served on a GPU"
        )
    return torch.cat(scales)


def forget_linears(*modules: nn.Module) -> None:
    """Free the linear layers of these, whose weights are elsewhere now."""
    for module in modules:
        for name in [n for n, child in module.named_children() if isinstance(child, Weighted)]:
            delattr(module, name)
