"""Mixtures of experts on a CPU, so that a row's result does not depend on the other rows.

The number of rows that reach an expert depends on the whole pass. So does the kernel that a plain
product would take. Here each expert's products are packed (`models/layers/linear.py`), and its gate
is computed in whole vector blocks. A row's experts are summed in the order of its own choice.
Routers, whose products are not linear layers of their own, are called with blocks of always the
same rows.

Experts are those that transformers marks with `use_experts_implementation`.
"""

from __future__ import annotations

import inspect
import math
from typing import Any

import torch
from torch import Tensor, nn

from models.layers.linear import SERIAL_ELEMENTS, VECTOR_ELEMENTS, MakeLinear

_ROUTER_ROWS = 16


class PackedExperts(nn.Module):
    """The experts of one layer; takes the place of transformers' own, which lose their weights.

    Args:
        experts: on the CPU, for which `can_pack_experts` holds.
        make_linear: makes their linear layers.
    """

    def __init__(self, experts: Any, make_linear: MakeLinear) -> None:
        super().__init__()
        self._first_name = "gate_up_proj" if experts.has_gate else "up_proj"
        self._first = _packed(experts, self._first_name, make_linear)
        self._second = _packed(experts, "down_proj", make_linear)
        self._experts = experts  # for its activation

    def forward(
        self, rows: Tensor, chosen: Tensor, weights: Tensor
    ) -> Tensor:  # [R, hidden], [R, k] int, [R, k] -> [R, hidden]
        """Run each row's experts; sum them, weighted, in the order of `chosen`."""
        num_rows, num_chosen = chosen.shape
        flat = chosen.flatten()
        outs = rows.new_empty(num_rows * num_chosen, rows.shape[1])
        for expert in flat.unique().tolist():
            places = (flat == expert).nonzero().flatten()
            inner = self._first[expert](rows.index_select(0, places // num_chosen))
            outs[places] = self._second[expert](self._activated(inner))
        weighted = outs.view(num_rows, num_chosen, -1) * weights.unsqueeze(-1)
        total = weighted[:, 0]
        for place in range(1, num_chosen):
            total = total + weighted[:, place]
        return total.to(rows.dtype)

    def _activated(self, inner: Tensor) -> Tensor:  # [n, width] -> [n, width or half of it]
        """Apply the gate, or activation, to rows in blocks that are whole vectors."""
        num_rows, width = inner.shape
        step = VECTOR_ELEMENTS // math.gcd(width // 2, VECTOR_ELEMENTS)
        padded = nn.functional.pad(inner, (0, 0, 0, -num_rows % step))
        block = max(step, SERIAL_ELEMENTS // width // step * step)
        function = self._experts._apply_gate if self._experts.has_gate else self._experts.act_fn
        parts = [function(part) for part in padded.split(block)]
        return torch.cat(parts)[:num_rows].contiguous()


def _packed(experts: Any, name: str, make_linear: MakeLinear) -> list[nn.Module]:
    """Return the products of each expert; the weights they came from are freed."""
    weights = getattr(experts, name).detach()
    biases = (
        getattr(experts, f"{name}_bias").detach() if experts.has_bias else [None] * len(weights)
    )
    packed = [
        make_linear(weight.T if experts.is_transposed else weight, bias)
        for weight, bias in zip(weights, biases, strict=True)
    ]
    delattr(experts, name)
    return packed


def can_pack_experts(module: nn.Module) -> bool:
    """Return whether a module holds experts as transformers keeps them, all on this rank."""
    experts: Any = module
    return (
        hasattr(experts, "has_gate")
        and hasattr(experts, "is_transposed")
        and isinstance(getattr(experts, "down_proj", None), nn.Parameter)
        and not experts.has_post_expert_norm
        and not experts._is_expert_parallel
    )


class BlockwiseRouter(nn.Module):
    """A router that always sees the same number of rows; the last block is filled up with zeros.

    Args:
        router: maps rows [R, hidden], or [1, R, hidden], to tensors of as many rows.
    """

    def __init__(self, router: nn.Module) -> None:
        super().__init__()
        self.router = router

    def forward(self, rows: Tensor) -> Tensor | tuple[Tensor, ...]:
        """Return the router's answer for each row."""
        num_rows = rows.shape[-2]
        padded = nn.functional.pad(rows, (0, 0, 0, -num_rows % _ROUTER_ROWS))
        answers = [self.router(block) for block in padded.split(_ROUTER_ROWS, dim=-2)]
        if isinstance(answers[0], Tensor):
            return _joined(answers, num_rows)
        return tuple(_joined(parts, num_rows) for parts in zip(*answers, strict=True))


def _joined(parts: Any, num_rows: int) -> Tensor:
    axis = 0 if parts[0].shape[0] == _ROUTER_ROWS else 1
    return torch.cat(parts, dim=axis).narrow(axis, 0, num_rows)


def make_experts_rowwise(model: nn.Module, make_linear: MakeLinear) -> None:
    """Replace, in place, the experts and routers of a model on the CPU.

    Args:
        make_linear: makes the experts' linear layers.
    """
    for parent in list(model.modules()):
        for name, child in list(parent.named_children()):
            if can_pack_experts(child):
                setattr(parent, name, PackedExperts(child, make_linear))
            elif _is_router(child):
                setattr(parent, name, BlockwiseRouter(child))


def _is_router(module: nn.Module) -> bool:
    is_named = type(module).__name__.endswith("Router") and not isinstance(module, nn.Linear)
    return is_named and len(inspect.signature(module.forward).parameters) == 1
