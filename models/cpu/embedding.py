"""Embeddings as the step that begins a pass: rows of a table, or of a weight in groups.

An embedding in groups that the output layer shares is read out of that layer's panels. So it takes
no memory of its own.
"""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from models.cpu.kernels import parameters
from models.cpu.kernels.compiling import Call
from models.cpu.ops import PassTable, buffer, pick
from models.cpu.product import KernelLinear

_PICKED_FROM = buffer(5)


class Embedding(Protocol):
    """Rows that passes are begun with.

    Attributes:
        like: [any, F] of the rows' type.
    """

    @property
    def like(self) -> Tensor: ...

    def step(self, table: PassTable, target: int) -> Call:
        """Return the step that has the rows of the pass's ids in the field `target`."""
        ...


class WholeEmbedding:
    """Implements `Embedding` by a table [ids, F]."""

    def __init__(self, like: Tensor) -> None:
        self.like = like

    def step(self, table: PassTable, target: int) -> Call:
        """See `Embedding`; the table of the pass has the address of ours from now on."""
        table.put(_PICKED_FROM, self.like)
        return pick(self.like[0].nbytes, table, _PICKED_FROM, target)


class PackedEmbedding(nn.Module):
    """Implements `Embedding`, and a model's own one, by the panels of a product.

    Args:
        product: [ids, F] in groups, without a gate.
    """

    def __init__(self, product: KernelLinear) -> None:
        super().__init__()
        self._product = product
        self.like = torch.empty(1, product.in_features, dtype=product.weight.dtype)
        self._table = PassTable()
        self._call = self.step(self._table, buffer(0))

    def step(self, table: PassTable, target: int) -> Call:
        """See `Embedding`."""
        return self._product.unpacking_step(table, target)

    def forward(self, ids: Tensor) -> Tensor:  # [...] -> [..., F]
        """Return the ids' rows."""
        picked = ids.flatten().contiguous()
        out = self.like.new_empty(len(picked), self.like.shape[1])
        self._table.values[parameters.NUM_ROWS] = len(picked)
        self._table.put(parameters.PICKED, picked)
        self._table.put(buffer(0), out)
        self._call.run(1)
        return out.unflatten(0, ids.shape)
