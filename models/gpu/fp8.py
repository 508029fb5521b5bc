"""Linear layers with weights and inputs of 8 bits for GPUs: half of what a pass reads.

Each weight is rounded to float8_e4m3 once, when the model is loaded, with a scale for each output.
Each row of the inputs is rounded when it comes, with a scale of its own. Published "FP8-dynamic"
checkpoints hold the same (`models/checkpoint/float8.py`), and their numbers and scales are taken as
they are. Like in them, the last layer, which gives the logits, is not rounded. Products are torch's
`_scaled_mm` (cuBLAS or CUTLASS on GPUs from compute capability 8.9 on). A CPU computes the same
slowly, which serves for tests. Draws of a target are then those of the rounded model; a draft's
rounding changes its speed alone.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.layers.linear import plain_linear
from models.layers.quantization import can_round_to_fp8
from models.torch_library import has_kernels

LEAST_CAPABILITY = (8, 9)  # least compute capability of a GPU whose products take float8
_FP8 = torch.float8_e4m3fn
_LARGEST = torch.finfo(_FP8).max  # 448
_LEAST_SCALE = 1e-12  # scale of a row of zeros


def fp8_linear(weight: Tensor, bias: Tensor | None, scales: Tensor | None = None) -> nn.Module:
    """Return an `Fp8Linear`; a plain layer if the product does not support the sizes."""
    if can_round_to_fp8(*weight.shape):
        return Fp8Linear(weight, bias, scales)
    if scales is not None:
        weight = (weight.float() * scales.unsqueeze(1)).to(weight.dtype)
    return plain_linear(weight, bias)


def stored_linear(weight: Tensor, bias: Tensor | None, scales: Tensor | None = None) -> nn.Module:
    """Return a layer of a float8 checkpoint; without scales its weight was left whole."""
    return plain_linear(weight, bias) if scales is None else fp8_linear(weight, bias, scales)


class Fp8Linear(nn.Module):
    """`nn.Linear` with a weight in float8.

    Args:
        weight: [outputs, inputs], multiples of 16; not kept.
        bias: [outputs] or None.
        scales: [outputs] float32, where the weight's numbers are of float8 already; else None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, scales: Tensor | None = None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        if scales is None:
            rounded, scales = _round_rows(weight.detach())
        else:
            rounded = weight.detach().to(_FP8)
        self.weight = nn.Parameter(rounded, requires_grad=False)
        self.scales = nn.Parameter(scales.view(1, -1), requires_grad=False)  # float32
        self.bias = None if bias is None else nn.Parameter(bias.detach(), requires_grad=False)

    def forward(self, rows: Tensor) -> Tensor:  # [R, inputs] -> [R, outputs]
        """Rows, each rounded with its own scale, times the rounded weight."""
        if len(rows) == 0:
            return rows.new_empty(0, self.out_features)
        rounded, scales = round_rows(rows)
        result: Tensor = torch._scaled_mm(
            rounded,
            self.weight.t(),
            scale_a=scales,
            scale_b=self.scales,
            bias=self.bias,
            out_dtype=rows.dtype,
        )
        return result


def round_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return each row over its scale in float8, [R, F], and the scales, [R, 1] float32."""
    if not has_kernels(rows.device):
        return _round_rows(rows)
    from models.gpu.kernels.rounding import round_rows as by_kernel

    return by_kernel(rows, _LARGEST, _LEAST_SCALE)


def _round_rows(rows: Tensor) -> tuple[Tensor, Tensor]:
    wide = rows.float()
    largest = wide.new_full((), _LARGEST)  # by a Python number a GPU multiplies with the inverse
    scales = wide.abs().amax(dim=1, keepdim=True).div_(largest).clamp_(min=_LEAST_SCALE)
    return (wide / scales).clamp_(-_LARGEST, _LARGEST).to(_FP8), scales
