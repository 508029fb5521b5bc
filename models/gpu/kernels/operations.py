"""The operations of a layer by Triton's kernels, one launch each."""

from __future__ import annotations

from torch import Tensor

from models.gpu.kernels.gate import gate
from models.gpu.kernels.norm import add_rms_norm, rms_norm
from models.gpu.kernels.rotary import rotate_and_store
from models.gpu.operands import Norm, Rotation, Slots


class TritonOperations:
    """Implements `LayerOperations`."""

    def norm(self, rows: Tensor, norm: Norm) -> Tensor:
        """See `LayerOperations`."""
        return rms_norm(rows, norm.weight, norm.epsilon)

    def add_norm(self, update: Tensor, residual: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
        """See `LayerOperations`."""
        return add_rms_norm(update, residual, norm.weight, norm.epsilon)

    def place(
        self, mixed: Tensor, rotation: Rotation, head_norm: Norm | None, slots: Slots
    ) -> Tensor:
        """See `LayerOperations`."""
        return rotate_and_store(mixed, rotation, head_norm, slots)

    def gate(self, gate_up: Tensor) -> Tensor:
        """See `LayerOperations`."""
        return gate(gate_up)
