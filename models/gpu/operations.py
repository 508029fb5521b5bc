"""Operations of a Llama layer between its products, behind one interface.

Triton's kernels do each in one launch (`kernels/`). Where there is no Triton, torch's own
operations do the same in more launches.

Shape letters: R rows, H query heads, K key heads, D head size, F width.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from models.gpu.operands import Norm, Rotation, Slots
from models.torch_library import has_kernels


@dataclass(frozen=True, slots=True)
class LayerOperations:
    """Operations between the products of a layer. Sums and norms are computed in float32.

    Attributes:
        norm: rows [R, F] normed.
        add_norm: the sum of an update and a residual, [R, F], and that normed.
        place: the rotated queries [R, H, D] of joined products [R, (H + 2 K) * D]; keys and values
            are in their slots.
        gate: silu of the first half of each row times the second, [R, 2 F] -> [R, F].
    """

    norm: Callable[[Tensor, Norm], Tensor]
    add_norm: Callable[[Tensor, Tensor, Norm], tuple[Tensor, Tensor]]
    place: Callable[[Tensor, Rotation, Norm | None, Slots], Tensor]
    gate: Callable[[Tensor], Tensor]


def layer_operations(device: torch.device) -> LayerOperations:
    """Return the fastest operations for the device."""
    return triton_operations() if has_kernels(device) else TORCH


def triton_operations() -> LayerOperations:
    """Return the operations by Triton's kernels, one launch each."""
    from models.gpu.kernels.gate import gate
    from models.gpu.kernels.norm import add_rms_norm, rms_norm
    from models.gpu.kernels.rotary import rotate_and_store

    return LayerOperations(rms_norm, add_rms_norm, rotate_and_store, gate)


def _norm(rows: Tensor, norm: Norm) -> Tensor:
    return F.rms_norm(rows, rows.shape[-1:], norm.weight, norm.epsilon)


def _add_norm(update: Tensor, residual: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    total = residual + update
    return total, _norm(total, norm)


def _place(mixed: Tensor, rotation: Rotation, head_norm: Norm | None, slots: Slots) -> Tensor:
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


def _gate(gate_up: Tensor) -> Tensor:
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


TORCH = LayerOperations(_norm, _add_norm, _place, _gate)  # without Triton
