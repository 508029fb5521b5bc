"""Operations of a Llama layer between its products, behind one interface.

Triton's kernels do each in one launch (`kernels/`). Where there is no Triton, torch's own
operations do the same in more launches.

Shape letters: R rows, H query heads, K key heads, D head size, F width.
"""

from __future__ import annotations

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from models.gpu.operands import Norm, Rotation, Slots
from models.torch_library import has_kernels


class LayerOperations(Protocol):
    """Operations between the products of a layer. Sums and norms are computed in float32."""

    def norm(self, rows: Tensor, norm: Norm) -> Tensor:
        """[R, F] normed."""
        ...

    def add_norm(self, update: Tensor, residual: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """Return the sum of both, [R, F], and that normed."""
        ...

    def place(
        self, mixed: Tensor, rotation: Rotation, head_norm: Norm | None, slots: Slots
    ) -> Tensor:
        """Return the rotated queries [R, H, D] of joined products [R, (H + 2 K) * D].

        Keys and values are in their slots.
        """
        ...

    def gate(self, gate_up: Tensor) -> Tensor:
        """silu of the first half of each row times the second, [R, 2 F] -> [R, F]."""
        ...


def layer_operations(device: torch.device) -> LayerOperations:
    """Return the fastest operations for the device."""
    if not has_kernels(device):
        return TorchOperations()
    from models.gpu.kernels.operations import TritonOperations

    return TritonOperations()


class TorchOperations:
    """Implements `LayerOperations` by torch's own."""

    def norm(self, rows: Tensor, norm: Norm) -> Tensor:
        """See `LayerOperations`."""
        return F.rms_norm(rows, rows.shape[-1:], norm.weight, norm.epsilon)

    def add_norm(self, update: Tensor, residual: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """See `LayerOperations`."""
        total = residual + update
        return total, self.norm(total, norm)

    def place(
        self, mixed: Tensor, rotation: Rotation, head_norm: Norm | None, slots: Slots
    ) -> Tensor:
        """See `LayerOperations`."""
        num_key_heads, head_dim = slots.keys.shape[1:]
        heads = mixed.view(len(mixed), -1, head_dim)
        rotated, value = heads[:, :-num_key_heads], heads[:, -num_key_heads:]
        if head_norm is not None:
            normed = F.rms_norm(rotated, (head_dim,), None, head_norm.epsilon)
            rotated = normed * head_norm.weight
        cos, sin = rotation.rows()
        swapped = rotated.roll(head_dim // 2, dims=-1)
        rotated = torch.addcmul(rotated * cos, swapped, sin)
        slots.keys.index_copy_(0, slots.row_slots, rotated[:, -num_key_heads:])
        slots.values.index_copy_(0, slots.row_slots, value)
        return rotated[:, :-num_key_heads]

    def gate(self, gate_up: Tensor) -> Tensor:
        """See `LayerOperations`."""
        gate, up = gate_up.chunk(2, dim=-1)
        return F.silu(gate) * up
