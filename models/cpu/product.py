"""Linear layers on the compiled product kernel: a row's bits are its own in passes of any size.

Weights are kept in panels only, in the layout that `kernels/tile.py` reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from models.cpu.kernels import parameters, product
from models.cpu.kernels.compiling import Call
from models.cpu.kernels.matrix import INPUTS_A_STEP, has_matrix_registers
from models.cpu.kernels.tile import PANEL
from models.cpu.ops import PassTable, buffer, new_step
from models.cpu.shared_weights import kept
from models.layers.quantization import quantize_weight

# Numbers of a product from which on it is divided among threads.
_PARALLEL_NUMBERS = 1 << 18
# Panels that a thread takes at once: few enough that all threads end together.
_PANELS_AT_ONCE = 4
_PANELS_FOR_MANY = 64

_KERNELS = {
    (torch.bfloat16, False): product.multiply_bfloat16,
    (torch.float32, False): product.multiply_float32,
    (torch.bfloat16, True): product.multiply_bfloat16_int8,
    (torch.float32, True): product.multiply_float32_int8,
}


def kernel_of(dtype: torch.dtype, is_quantized: bool, num_inputs: int) -> Callable[[Any], None]:
    """Return the kernel that multiplies any rows by a weight with so many inputs."""
    is_stepwise = num_inputs % INPUTS_A_STEP == 0
    if dtype == torch.bfloat16 and not is_quantized and is_stepwise and has_matrix_registers():
        return product.multiply_bfloat16_by_matrix
    return _KERNELS[dtype, is_quantized]


class Epilogue(NamedTuple):
    """Options for a product's outputs; the default changes nothing."""

    residual: int = 0  # field of rows [R, N] that are added
    is_wide: bool = False  # they are written as float32


class KernelLinear(nn.Module):
    """`nn.Linear` for inference on a CPU with compiled kernels.

    Args:
        weight: [outputs, inputs], float32 or bfloat16; not kept. Of a gated product the gates, then
            as many outputs that they are for.
        bias: [outputs] or None.
        is_quantized: whether weights are kept in 8 bits (`models/layers/quantization.py`).
        is_gated: whether it gives SiLU of the gates times the rest, [..., outputs / 2].
    """

    def __init__(
        self,
        weight: Tensor,
        bias: Tensor | None,
        *,
        is_quantized: bool = False,
        is_gated: bool = False,
    ) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self.num_outputs = self.out_features // (2 if is_gated else 1)
        self.weight = weight.new_empty(0)  # for models that ask for its dtype
        self._is_gated, self._dtype = is_gated, weight.dtype
        self._is_quantized = is_quantized
        self._scales: Tensor | None = None
        weight = weight.detach()
        if is_quantized:
            weight, scales = quantize_weight(weight)
            self._scales = self._in_panels(scales.float().unsqueeze(1)).flatten()
        self._bias = (
            None if bias is None else self._in_panels(bias.detach().float()[:, None]).flatten()
        )
        self._panels = kept(_paired(self._in_panels(weight)))
        self._table = PassTable()
        self._call = self.step(self._table, buffer(0), buffer(1), Epilogue())

    def _in_panels(self, values: Tensor) -> Tensor:  # [outputs, n] -> [panels, PANEL, n]
        """Return the outputs of each panel, zeros after the last."""
        if not self._is_gated:
            missing = -len(values) % PANEL
            return nn.functional.pad(values, (0, 0, 0, missing)).unflatten(0, (-1, PANEL))
        half = PANEL // 2
        missing = -self.num_outputs % half
        halves = [
            nn.functional.pad(part, (0, 0, 0, missing)).unflatten(0, (-1, half))
            for part in values.split(self.num_outputs)
        ]
        return torch.cat(halves, 1)

    def step(self, table: PassTable, source: int, target: int, end: Epilogue) -> Call:
        """Return the product as a step of a pass.

        Args:
            table: of the pass.
            source: field of rows [R, inputs].
            target: field of [R, num_outputs].
            end: what becomes of the outputs.
        """
        kernel = kernel_of(self._dtype, self._is_quantized, self.in_features)
        call = new_step(
            kernel, product.NUM_PARAMETERS, table, self._panels, self._scales, self._bias
        )
        own = call.parameters
        own[product.WEIGHT] = self._panels.data_ptr()
        own[product.PANEL_BYTES] = self._panels[0].nbytes
        own[product.NUM_INPUTS] = self.in_features
        own[product.NUM_OUTPUTS] = self.num_outputs
        own[product.SCALES] = 0 if self._scales is None else self._scales.data_ptr()
        own[product.BIAS] = 0 if self._bias is None else self._bias.data_ptr()
        own[product.SOURCE], own[product.TARGET] = source, target
        own[product.RESIDUAL] = end.residual
        own[product.IS_GATED], own[product.IS_WIDE] = self._is_gated, end.is_wide
        is_long = len(self._panels) >= _PANELS_FOR_MANY
        own[product.PANELS_AT_ONCE] = _PANELS_AT_ONCE if is_long else 1
        return call

    def forward(self, rows: Tensor) -> Tensor:  # [..., inputs] -> [..., num_outputs]
        """Multiply rows by the weight; each row's result is a function of that row alone."""
        out = rows.new_empty(*rows.shape[:-1], self.num_outputs)
        num_rows = rows.numel() // self.in_features
        self._table.values[parameters.NUM_ROWS] = num_rows
        rows = rows.contiguous()
        self._table.put(buffer(0), rows)
        self._table.put(buffer(1), out)
        is_long = num_rows * self.in_features * self.out_features >= _PARALLEL_NUMBERS
        self._call.run(torch.get_num_threads() if is_long else 1)
        return out


def _paired(panels: Tensor) -> Tensor:
    """Lay out panels [P, PANEL, I] as the kernel reads: [P, I, PANEL], bfloat16 by two inputs."""
    if panels.dtype != torch.bfloat16:
        return panels.transpose(1, 2).contiguous()
    panels = nn.functional.pad(panels, (0, panels.shape[2] % 2))
    return panels.unflatten(2, (-1, 2)).transpose(1, 2).contiguous()
