"""One rank's share of a model's layers as plain modules, after transformers sharded the weights.

transformers leaves DTensors and a hooked forward on every layer that its plan names. Here each of
them becomes a plain module over the local shard. It has an explicit exchange if the plan has one:

    colwise                  local columns of the output; nothing to exchange
    colwise_gather_output    local columns, then every rank gets all (logits: the leader alone)
    rowwise                  local rows of the weight: a partial result, then the sum over ranks
    rowwise_split_input      the same of an input that every rank holds whole
    embedding_rowwise        rows of other ranks' words are zero, then the sum over ranks

So `models/layers/linear.py` packs a rank's linear layers like any other's. Layers that the plan
names otherwise (mixtures of experts, norms) keep transformers' own hooks. Plans:
`base_model_tp_plan` of the model's config. Column and row parallel layers: arXiv 1909.08053.
"""

from __future__ import annotations

import re
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from models.layers.grouped import GroupedEmbedding, GroupedLinear
from models.layers.linear import plain_linear

_COLUMN_STYLES = ("colwise", "colwise_gather_output", "colwise_rep")
_ROW_STYLES = ("rowwise", "rowwise_split_input", "rowwise_rep")


class Ranks(Protocol):
    """The part of `models.parallel.ranks.TensorParallel` that the layers need."""

    rank: int
    world_size: int

    def sum(self, part: Tensor, bias: Tensor | None = None) -> Tensor:
        """Return the sum over ranks, plus a bias."""
        ...

    def gather_columns(self, columns: Tensor) -> Tensor:
        """Gather all ranks' columns on every rank."""
        ...

    def gather_to_leader(self, columns: Tensor) -> Tensor:
        """Gather all ranks' columns on the leader, none on the others."""
        ...


class GatheredLinear(nn.Module):
    """A linear layer of which this rank has some columns of the output; all ranks get all.

    Args:
        linear: this rank's columns.
        ranks: who has the others.
        leader_only: followers get none: for logits, which only the leader samples from.
    """

    def __init__(self, linear: nn.Module, ranks: Ranks, *, leader_only: bool) -> None:
        super().__init__()
        self.linear = linear
        self._ranks = ranks
        self._leader_only = leader_only

    def forward(self, rows: Tensor) -> Tensor:  # [..., inputs] -> [..., outputs]
        """Rows times the whole weight."""
        columns = self.linear(rows)
        if columns.numel() == 0:  # no logits wanted: on every rank the same
            num_outputs = columns.shape[-1] * self._ranks.world_size
            return columns.new_empty(*columns.shape[:-1], num_outputs)
        if self._leader_only:
            return self._ranks.gather_to_leader(columns)
        return self._ranks.gather_columns(columns)


class RowParallelLinear(nn.Module):
    """A linear layer of which this rank has some inputs; every rank gets the sum.

    Args:
        linear: this rank's columns of the weight, without bias.
        bias: [outputs] or None, added once.
        ranks: who has the other inputs.
        splits_input: whether the input comes whole rather than as this rank's part.
    """

    def __init__(
        self, linear: nn.Linear, bias: Tensor | None, ranks: Ranks, *, splits_input: bool
    ) -> None:
        super().__init__()
        self.linear: nn.Module = linear
        self._bias = bias
        self._ranks = ranks
        self._first_input = ranks.rank * linear.in_features if splits_input else 0
        self._num_inputs = linear.in_features

    def forward(self, rows: Tensor) -> Tensor:  # [..., inputs] -> [..., outputs]
        """Rows times the whole weight, plus the bias."""
        own = rows.narrow(-1, self._first_input, self._num_inputs).contiguous()
        return self._ranks.sum(self.linear(own), self._bias)


class ParallelEmbedding(nn.Module):
    """An embedding of which this rank has the words from `rank * len(weight)` on.

    Args:
        weight: [words of this rank, width].
        ranks: who has the other words.
    """

    def __init__(self, weight: Tensor, ranks: Ranks) -> None:
        super().__init__()
        self.weight = nn.Parameter(weight, requires_grad=False)
        self._first = ranks.rank * len(weight)
        self._ranks = ranks

    def forward(self, token_ids: Tensor) -> Tensor:  # [...] -> [..., width]
        """Return each word's row; exact, because all other ranks add zeros."""
        local = token_ids - self._first
        is_own = (local >= 0) & (local < len(self.weight))
        rows = nn.functional.embedding(local.where(is_own, 0), self.weight)
        return self._ranks.sum(rows.masked_fill_(~is_own.unsqueeze(-1), 0))


def refuse_undivided(name: str, layer: nn.Module, plan: dict[str, str], world_size: int) -> None:
    """Check that so many ranks can share a layer.

    Args:
        name: what it is of, for the refusal.
        layer: with plain linear layers.
        plan: style by module name, as of `parallel.plan.layer_plan`.
        world_size: how many ranks.

    Raises:
        ValueError: a size is not divisible; names it.
    """
    for part, linear in layer.named_modules():
        style = plan.get(part, "")
        if type(linear) is nn.Linear and style in _COLUMN_STYLES + _ROW_STYLES:
            size = linear.out_features if style in _COLUMN_STYLES else linear.in_features
            if size % world_size:
                raise ValueError(
                    f"{name}: tensor_parallel_size {world_size} does not divide the {size} "
                    f"of {part}"
                )


def divide(layer: nn.Module, plan: dict[str, str], ranks: Ranks) -> None:
    """Keep, in place, this rank's share of a layer that it was given whole.

    Args:
        layer: with plain linear layers, which `refuse_undivided` has not refused.
        plan: style by module name, as of `parallel.plan.layer_plan`.
        ranks: who shares the layer.
    """
    for name, linear in layer.named_modules():
        style = plan.get(name, "")
        if type(linear) is nn.Linear and style in _COLUMN_STYLES + _ROW_STYLES:
            dim = 0 if style in _COLUMN_STYLES else 1
            linear.weight = _own_part(linear.weight, dim, ranks)
            if linear.bias is not None and dim == 0:
                linear.bias = _own_part(linear.bias, dim, ranks)
    make_local(layer, plan, ranks)


def _own_part(whole: Tensor, dim: int, ranks: Ranks) -> nn.Parameter:
    part = whole.detach().chunk(ranks.world_size, dim=dim)[ranks.rank]
    return nn.Parameter(part.clone(memory_format=torch.contiguous_format), requires_grad=False)


def make_local(model: nn.Module, plan: dict[str, str], ranks: Ranks) -> None:
    """Replace, in place, the sharded layers of a model that transformers loaded for this rank.

    Args:
        model: as `from_pretrained(distributed_config=...)` returns it.
        plan: style by module name, layer numbers written as `*`.
        ranks: who shares the model.

    Raises:
        ValueError: a layer cannot be divided evenly; the message names it.
    """
    get_output: Any = getattr(model, "get_output_embeddings", lambda: None)
    output = get_output()
    for name, module in list(model.named_modules()):
        style = plan.get(re.sub(r"\.\d+(?=\.|$)", ".*", name))
        if style is None:
            continue
        local = _local_module(name, module, style, ranks, is_output=module is output)
        if local is not None:
            parent, _, child = name.rpartition(".")
            setattr(model.get_submodule(parent), child, local)


def _local_module(
    name: str, module: nn.Module, style: str, ranks: Ranks, *, is_output: bool
) -> nn.Module | None:
    """Return the plain module for a sharded one; None to leave it to transformers' hooks."""
    if type(module) is nn.Embedding and style == "embedding_rowwise":
        _check_divides(name, module.num_embeddings, ranks)
        return ParallelEmbedding(local_tensor(module.weight), ranks)
    if type(module) is not nn.Linear:
        return None
    weight = local_tensor(module.weight)
    bias = None if module.bias is None else local_tensor(module.bias)
    if style in _COLUMN_STYLES:
        _check_divides(name, module.out_features, ranks)
        linear = plain_linear(weight, bias)
        if style == "colwise" and not is_output:
            return linear
        return GatheredLinear(linear, ranks, leader_only=is_output)
    if style in _ROW_STYLES:
        _check_divides(name, module.in_features, ranks)
        splits_input = style != "rowwise"
        return RowParallelLinear(plain_linear(weight, None), bias, ranks, splits_input=splits_input)
    return None


def _check_divides(name: str, size: int, ranks: Ranks) -> None:
    if size % ranks.world_size:
        raise ValueError(
            f"tensor_parallel_size {ranks.world_size} does not divide the {size} of {name}"
        )


def local_tensor(tensor: Tensor) -> Tensor:
    """Return this rank's part of a parameter that may be sharded, without its history."""
    local = tensor.to_local() if isinstance(tensor, DTensor) else tensor
    return local.detach()


def num_local_weights(model: nn.Module) -> int:
    """Numbers of this rank's part of a loaded model; shared ones count once."""
    whole = {local.data_ptr(): local.numel() for local in map(local_tensor, model.parameters())}
    kept = [
        module.stored
        for module in model.modules()
        if isinstance(module, GroupedLinear | GroupedEmbedding)
    ]
    grouped = {id(one): len(one.codes) * one.num_inputs for one in kept}
    return sum(whole.values()) + sum(grouped.values())


def num_local_bytes(model: nn.Module) -> int:
    """Memory of this rank's part of the parameters; shared ones count once."""
    with torch.no_grad():
        locals_by_place = {
            local.data_ptr(): local.nbytes for local in map(local_tensor, model.parameters())
        }
    return sum(locals_by_place.values())
