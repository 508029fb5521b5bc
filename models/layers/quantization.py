"""Linear layers with 8-bit weights: half the memory of bfloat16, and half to read in a pass.

Each weight is rounded once, when the model is loaded. It becomes an integer from -127 to 127 times
the scale of its output. Inputs and sums stay in floating point. No weight moves by more than half
its scale. So for a row x the exact product for output n moves by at most scale[n] / 2 * sum|x|.

Where the compiled kernels serve, products are theirs (`models/cpu/product.py`), and what is here
rounds the weights. Elsewhere they are torch's `_weight_int8pack_mm`. Its result for a row does not
depend on the other rows, so an engine stays batch-invariant. This was tried in float32, bfloat16
and float16, for 1 to 512 rows. Its time grows with the rows. Packed bfloat16 (`linear.py`) was
slower on the development machine for up to 4 rows and even at 6 to 8. It was two to four times
faster for hundreds. That suits a draft, whose passes are long only when it reads a prompt. Other
ways that were tried there:

    torchao 0.18, weight only and dynamic: slower than packed bfloat16 without `torch.compile`
    inputs rounded to 8 bits as well (`_int_mm`, FBGEMM, oneDNN): up to twice as fast as packed
        bfloat16 for 1 to 32 rows of 1024 inputs, but little or no faster below 256 inputs, where
        drafts are; FBGEMM's, the fastest, needs tensor types that torch 2.13 deprecates
    4-bit weights (`_weight_int4pack_mm_for_cpu`): a tenth to a half faster, 15 times the error
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from models.layers.linear import MakeLinear

FP8_SCALE_BYTES = 4  # bytes of an output's scale
_FP8_MULTIPLE = 16  # it divides inputs and outputs, or torch's product of float8 refuses them
_LEVELS = 127  # symmetric: -127 to 127
_INPUTS_MULTIPLE = 16  # the kernel reads whole vectors, beyond the end of a row if it must


def quantize_weight(weight: Tensor) -> tuple[Tensor, Tensor]:
    """Round a weight to 8 bits, symmetrically, with one scale per output.

    Args:
        weight: [outputs, inputs], floating point.

    Returns:
        The integers, [outputs, inputs] int8, and the scales, [outputs] of the weight's type. Their
        product is nowhere further than half a scale from the weight.
    """
    wide = weight.detach().float()
    scales = wide.abs().amax(1).div_(_LEVELS)
    # Rounded first: integers are chosen for the scales that the product will use.
    scales = scales.to(weight.dtype).clamp_(min=torch.finfo(weight.dtype).tiny)
    integers = (wide / scales.float().unsqueeze(1)).round_().clamp_(-_LEVELS, _LEVELS)
    return integers.to(torch.int8), scales


def can_quantize(dtype: torch.dtype) -> bool:
    """Return whether this torch has the 8-bit product for inputs of `dtype` on this CPU."""
    rows = torch.ones(3, 32, dtype=dtype)
    integers = torch.full((5, 32), 2, dtype=torch.int8)
    try:
        out = _product(rows, integers, torch.full((5,), 0.5, dtype=dtype))
    except (AttributeError, NotImplementedError, RuntimeError):
        return False
    return bool((out == 32).all())


def _product(rows: Tensor, integers: Tensor, scales: Tensor) -> Tensor:
    return torch.ops.aten._weight_int8pack_mm(rows, integers, scales)


def int8_bytes(num_outputs: int, num_inputs: int, itemsize: int, *, has_bias: bool) -> int:
    """Memory of an `Int8Linear` whose scales and bias take `itemsize` bytes each."""
    num_padded = num_inputs + -num_inputs % _INPUTS_MULTIPLE
    return num_outputs * (num_padded + itemsize * (2 if has_bias else 1))


def can_round_to_fp8(num_outputs: int, num_inputs: int) -> bool:
    """Return whether a weight of this shape can be one of `models.gpu.fp8`."""
    return num_outputs % _FP8_MULTIPLE == 0 and num_inputs % _FP8_MULTIPLE == 0


class Int8Linear(nn.Module):
    """`nn.Linear` for inference on a CPU; keeps its weight in 8 bits only.

    Args:
        weight: [outputs, inputs], floating point; not kept.
        bias: [outputs] or None.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.out_features, self.in_features = weight.shape
        self._num_padding = -self.in_features % _INPUTS_MULTIPLE
        integers, self._scales = quantize_weight(weight)
        self._integers = nn.functional.pad(integers, (0, self._num_padding))
        self._bias = None if bias is None else bias.detach().clone()

    def forward(self, rows: Tensor) -> Tensor:  # [..., inputs] -> [..., outputs]
        """Rows times the weight; each row's result is a function of that row alone."""
        flat = rows.reshape(-1, self.in_features)
        if self._num_padding:
            flat = nn.functional.pad(flat, (0, self._num_padding))
        out = _product(flat.contiguous(), self._integers, self._scales)
        if self._bias is not None:
            out += self._bias
        return out.view(*rows.shape[:-1], self.out_features)


def refuse_unquantizable(dtype: torch.dtype) -> None:
    """Refuse `dtype` where torch has no 8-bit product for it.

    Raises:
        ValueError: there is none here.
    """
    if not can_quantize(dtype):
        name = str(dtype).removeprefix("torch.")
        raise ValueError(
            f"quantization int8: torch {torch.__version__} has no 8-bit product for dtype "
            f"{name} on this CPU"
        )


class Quantizer:
    """Makes linear layers with weights of 8 bits and counts what they take.

    Args:
        make_linear: makes one of a weight and its bias.

    Attributes:
        num_bytes: of the layers made so far, before they are packed.
    """

    def __init__(self, make_linear: MakeLinear) -> None:
        self._make_linear = make_linear
        self.num_bytes = 0

    def __call__(self, weight: Tensor, bias: Tensor | None, **options: bool) -> Any:
        """Make the layer of a weight and a bias, with the options of `make_linear`."""
        itemsize, has_bias = weight.element_size(), bias is not None
        self.num_bytes += int8_bytes(len(weight), weight.shape[1], itemsize, has_bias=has_bias)
        return self._make_linear(weight, bias, **options)
