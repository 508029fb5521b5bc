"""Layers whose weights came in groups: they hold a weight until a back-end takes it out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from models.layers.groups import Bits, GroupedWeight
from models.packed_form import CODES, GROUP, MINIMA, SCALES


@dataclass(frozen=True, slots=True)
class StoredGroups:
    """A weight in groups as files keep it; N outputs, G groups of inputs."""

    codes: Tensor  # [N, G * GROUP] or, two in a byte, [N, G * GROUP / 2] uint8
    scales: Tensor  # [N, G] float16
    minima: Tensor | None  # [N, G] float16; None: the codes have 8 bits

    @property
    def bits(self) -> Bits:
        """Bits of a code."""
        return 8 if self.minima is None else 4

    @property
    def num_inputs(self) -> int:
        """The weight's inputs."""
        return self.scales.shape[1] * GROUP

    @property
    def num_bytes(self) -> int:
        """The memory of its tensors."""
        parts = (self.codes, self.scales, self.minima)
        return sum(part.nbytes for part in parts if part is not None)

    def weight(self, dtype: torch.dtype, index: Tensor | None = None) -> GroupedWeight:
        """Return the weight for rows of `dtype`, of all outputs or of some."""
        parts = (self.codes, self.scales, self.minima)
        codes, scales, minima = (
            part if part is None or index is None else part[index] for part in parts
        )
        assert codes is not None
        assert scales is not None
        if minima is not None:
            codes = torch.stack((codes & 15, codes >> 4), 2).flatten(1)
        return GroupedWeight(codes, scales, minima, None, self.num_inputs, dtype)


def stored_groups(tensors: Mapping[str, Tensor], name: str) -> StoredGroups:
    """Return the weight of the layer `name` in the tensors of files."""
    return StoredGroups(tensors[name + CODES], tensors[name + SCALES], tensors.get(name + MINIMA))


class GroupedLinear(nn.Module):
    """Holds a linear layer's weight in groups; multiplies nothing.

    Args:
        stored: the weight.
        bias: [outputs] or None.
        dtype: of its rows.
    """

    def __init__(self, stored: StoredGroups, bias: Tensor | None, dtype: torch.dtype) -> None:
        super().__init__()
        self.stored, self._dtype = stored, dtype
        self.out_features, self.in_features = len(stored.codes), stored.num_inputs
        self.bias = None if bias is None else nn.Parameter(bias, requires_grad=False)

    @property
    def weight(self) -> GroupedWeight:
        """The weight, which is made anew at each call."""
        return self.stored.weight(self._dtype)


class GroupedEmbedding(nn.Module):
    """An embedding with a table in groups.

    Args:
        stored: the table, [ids, F].
        dtype: of rows.
    """

    def __init__(self, stored: StoredGroups, dtype: torch.dtype) -> None:
        super().__init__()
        self.stored, self._dtype = stored, dtype

    @property
    def weight(self) -> GroupedWeight:
        """The table, which is made anew at each call."""
        return self.stored.weight(self._dtype)

    def forward(self, ids: Tensor) -> Tensor:  # [...] -> [..., F]
        """Return the ids' rows."""
        rows = self.stored.weight(self._dtype, ids.flatten()).dequantized()
        return rows.to(self._dtype).unflatten(0, ids.shape)


def has_groups(model: nn.Module) -> bool:
    """Return whether a model has linear layers whose weights came in groups."""
    return any(isinstance(module, GroupedLinear) for module in model.modules())


Weighted = nn.Linear | GroupedLinear


def weight_of(layer: Any) -> Tensor | GroupedWeight:
    """Return the weight of a linear layer or an embedding as it is held."""
    weight: Tensor | GroupedWeight = layer.weight
    return weight.detach() if isinstance(weight, Tensor) else weight


def as_tensor(weight: Tensor | GroupedWeight) -> Tensor:
    """Return a weight as numbers of the type of its rows."""
    if isinstance(weight, Tensor):
        return weight
    return weight.dequantized().to(weight.dtype)
