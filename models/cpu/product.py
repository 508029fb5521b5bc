"""Linear layers on the compiled product kernel: a row's bits are its own in passes of any size.

Weights are kept in panels only, in the layout that `kernels/tile.py` reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.cpu.kernels import packed, parameters, product, unpacking
from models.cpu.kernels.compiling import Call
from models.cpu.kernels.matrix import INPUTS_A_STEP, has_matrix_registers
from models.cpu.ops import PassTable, buffer, new_step, room_for_packed
from models.cpu.panels import in_panels, packed_panels, whole_panels
from models.cpu.weight_memory import kept
from models.layers.groups import Bits, GroupedWeight, group_weight
from models.packed_form import GROUP

# Numbers of a product from which on it is divided among threads.
_PARALLEL_NUMBERS = 1 << 18
# Panels that a thread takes at once: few enough that all threads end together.
_PANELS_AT_ONCE = 4
_PANELS_FOR_MANY = 64

_KERNELS = {
    (torch.bfloat16, None): product.multiply_bfloat16,
    (torch.float32, None): product.multiply_float32,
    (torch.bfloat16, 8): product.multiply_bfloat16_packed8,
    (torch.float32, 8): product.multiply_float32_packed8,
    (torch.bfloat16, 4): product.multiply_bfloat16_packed4,
    (torch.float32, 4): product.multiply_float32_packed4,
}
_UNPACKS = {
    (torch.bfloat16, 8): unpacking.unpack_bfloat16_8,
    (torch.bfloat16, 4): unpacking.unpack_bfloat16_4,
    (torch.float32, 8): unpacking.unpack_float32_8,
    (torch.float32, 4): unpacking.unpack_float32_4,
}
_PACKS = {torch.bfloat16: packed.pack_bfloat16, torch.float32: packed.pack_float32}


def kernels_of(
    dtype: torch.dtype, bits: Bits | None, num_inputs: int
) -> list[Callable[[Any], None]]:
    """Return the kernels that multiply any rows by a weight with so many inputs, in order."""
    if bits is not None:
        return [_PACKS[dtype], _KERNELS[dtype, bits]]
    is_stepwise = num_inputs % INPUTS_A_STEP == 0
    if dtype == torch.bfloat16 and is_stepwise and has_matrix_registers():
        return [product.multiply_bfloat16_by_matrix]
    return [_KERNELS[dtype, bits]]


def unpack_kernel(dtype: torch.dtype, bits: Bits) -> Callable[[Any], None]:
    """Return the kernel that reads weights of so many bits back as rows of `dtype`."""
    return _UNPACKS[dtype, bits]


class Epilogue(NamedTuple):
    """Options for a product's outputs; the default changes nothing."""

    residual: int = 0  # field of rows [R, N] that are added
    is_wide: bool = False  # they are written as float32


class KernelLinear(nn.Module):
    """`nn.Linear` for inference on a CPU with compiled kernels.

    Args:
        weight: [outputs, inputs], float32, bfloat16 or in groups; not kept. Of a gated product the
            gates, then as many outputs that they are for.
        bias: [outputs] or None.
        bits: of the codes that a weight which is in no groups is rounded to
            (`models/layers/groups.py`); None: it is not rounded.
        is_gated: whether it gives SiLU of the gates times the rest, [..., outputs / 2].

    Attributes:
        bits: of its codes; None: the weight is in no groups.
    """

    def __init__(
        self,
        weight: Tensor | GroupedWeight,
        bias: Tensor | None,
        *,
        bits: Bits | None = None,
        is_gated: bool = False,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.num_outputs = self.out_features // (2 if is_gated else 1)
        self.weight = torch.empty(0, dtype=weight.dtype)  # for models that ask for its dtype
        self._is_gated, self._dtype = is_gated, weight.dtype
        self._scales: Tensor | None = None
        if isinstance(weight, Tensor) and bits is not None:
            weight = group_weight(weight.detach(), bits)
        self.bits = None if isinstance(weight, Tensor) else weight.bits
        if isinstance(weight, Tensor):
            self._panels = kept(whole_panels(weight.detach(), is_gated=is_gated))
        else:
            self._panels = kept(self._packed(weight))
        self._bias = None if bias is None else self._by_panel(bias.detach())
        self._table = PassTable()
        self._calls = self.steps(self._table, buffer(0), buffer(1), Epilogue())

    def _packed(self, weight: GroupedWeight) -> Tensor:
        if weight.factors is not None:
            self._scales = self._by_panel(weight.factors)
        return packed_panels(weight, is_gated=self._is_gated)

    def _by_panel(self, values: Tensor) -> Tensor:  # [outputs] -> [panels * PANEL] float32
        return in_panels(values.float().unsqueeze(1), is_gated=self._is_gated).flatten()

    def steps(self, table: PassTable, source: int, target: int, end: Epilogue) -> list[Call]:
        """Return the product as steps of a pass.

        Args:
            table: of the pass.
            source: field of rows [R, inputs].
            target: field of [R, num_outputs].
            end: what becomes of the outputs.
        """
        *packs, kernel = kernels_of(self._dtype, self.bits, self.in_features)
        steps = [self._packing_step(pack, table, source) for pack in packs]
        call = new_step(
            kernel, product.NUM_PARAMETERS, table, self._panels, self._scales, self._bias
        )
        own = call.parameters
        own[product.WEIGHT] = self._panels.data_ptr()
        own[product.PANEL_BYTES] = self._panels[0].nbytes
        own[product.NUM_INPUTS] = self.in_features
        own[product.ROW_BYTES] = self.in_features * self._dtype.itemsize
        own[product.SOURCE], own[product.TARGET] = source, target
        if packs:
            own[product.NUM_INPUTS] = -(-self.in_features // GROUP) * GROUP
            own[product.ROW_BYTES] = packed.row_bytes(self.in_features)
            own[product.SOURCE] = parameters.PACKED_ROWS
        own[product.NUM_OUTPUTS] = self.num_outputs
        own[product.SCALES] = 0 if self._scales is None else self._scales.data_ptr()
        own[product.BIAS] = 0 if self._bias is None else self._bias.data_ptr()
        own[product.RESIDUAL] = end.residual
        own[product.IS_GATED], own[product.IS_WIDE] = self._is_gated, end.is_wide
        is_long = len(self._panels) >= _PANELS_FOR_MANY
        own[product.PANELS_AT_ONCE] = at_once = _PANELS_AT_ONCE if is_long else 1
        own[product.PANELS_APART] = at_once * torch.get_num_threads()
        return [*steps, call]

    def unpacking_step(self, table: PassTable, target: int) -> Call:
        """Return the step that reads the weights of some outputs, in place of a product.

        Args:
            table: of the pass, whose `PICKED` are the outputs; they are in groups and not gated.
            target: field of rows [R, inputs].
        """
        assert self.bits is not None, "the weight is in no groups"
        assert not self._is_gated, "gates lie between the others"
        kernel = unpack_kernel(self._dtype, self.bits)
        call = new_step(kernel, unpacking.NUM_UNPACK_PARAMETERS, table, self._panels, self._scales)
        own = call.parameters
        own[unpacking.UNPACK_PANELS] = self._panels.data_ptr()
        own[unpacking.UNPACK_PANEL_BYTES] = self._panels[0].nbytes
        own[unpacking.UNPACK_FACTORS] = 0 if self._scales is None else self._scales.data_ptr()
        own[unpacking.UNPACK_INPUTS] = self.in_features
        own[unpacking.UNPACK_TARGET] = target
        return call

    def _packing_step(self, pack: Any, table: PassTable, source: int) -> Call:
        """Return the step that rounds the rows to 8 bits, for the product that comes next."""
        call = new_step(pack, packed.NUM_PACK_PARAMETERS, table)
        own = call.parameters
        own[packed.PACK_SOURCE], own[packed.PACK_TARGET] = source, parameters.PACKED_ROWS
        own[packed.PACK_INPUTS] = self.in_features
        return call

    def forward(self, rows: Tensor) -> Tensor:  # [..., inputs] -> [..., num_outputs]
        """Multiply rows by the weight; each row's result is a function of that row alone."""
        out = rows.new_empty(*rows.shape[:-1], self.num_outputs)
        num_rows = rows.numel() // self.in_features
        self._table.values[parameters.NUM_ROWS] = num_rows
        rows, between = rows.contiguous(), room_for_packed(num_rows, self.in_features)
        self._table.put(buffer(0), rows)
        self._table.put(buffer(1), out)
        self._table.put(parameters.PACKED_ROWS, between)
        is_long = num_rows * self.in_features * self.out_features >= _PARALLEL_NUMBERS
        for call in self._calls:
            call.run(torch.get_num_threads() if is_long else 1)
        return out
