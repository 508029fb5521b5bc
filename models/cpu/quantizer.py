"""Makes products of weights in groups, and counts what they take."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from models.layers.groups import Bits, GroupedWeight, group_weight
from models.layers.linear import MakeLinear


class Quantizer:
    """Makes linear layers with weights in groups and counts what they take.

    Args:
        make_linear: makes one of a weight and its bias.
        bits: of a code; None: only weights that are in groups already are kept so.

    Attributes:
        num_bytes: of the layers made so far, before they are packed.
    """

    def __init__(self, make_linear: MakeLinear, bits: Bits | None) -> None:
        self._make_linear = make_linear
        self._bits = bits
        self.num_bytes = 0

    @property
    def rounds(self) -> bool:
        """True if weights that are in no groups come to be."""
        return self._bits is not None

    def __call__(self, weight: Tensor | GroupedWeight, bias: Tensor | None, **options: bool) -> Any:
        """Make the layer of a weight and a bias, with the options of `make_linear`."""
        if isinstance(weight, Tensor) and self._bits is not None:
            weight = group_weight(weight.detach(), self._bits)
        self.num_bytes += weight.nbytes if isinstance(weight, Tensor) else weight.num_bytes
        self.num_bytes += 0 if bias is None else bias.nbytes
        return self._make_linear(weight, bias, **options)
