"""Operands of the operations of a layer, for Triton's kernels and torch's operations alike.

Shape letters: R rows, H query heads, K key heads, D head size, F width, P positions, N slots.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor


class Norm(NamedTuple):
    """RMSNorm of rows, or of each head by a weight of its own."""

    weight: Tensor  # [F], or [H + K, D]
    epsilon: float


@dataclass
class Rotation:
    """The angles of a pass's rows: tables of all positions, the sine's first half negated."""

    cos: Tensor  # [P, D]
    sin: Tensor  # [P, D]
    positions: Tensor  # [R] int64

    _rows: tuple[Tensor, Tensor] | None = None

    def rows(self) -> tuple[Tensor, Tensor]:
        """Cosine and sine of each row, [R, 1, D]; looked up once, for all layers."""
        if self._rows is None:
            cos, sin = self.cos[self.positions], self.sin[self.positions]
            self._rows = cos.unsqueeze(1), sin.unsqueeze(1)
        return self._rows


class Slots(NamedTuple):
    """Places for the keys and values of a layer in a pass."""

    keys: Tensor  # [N, K, D]
    values: Tensor  # [N, K, D]
    row_slots: Tensor  # [R] int64
