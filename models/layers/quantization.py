"""Weights rounded to 8 bits with a scale for each output, for products on GPUs.

Each weight is rounded once, when the model is loaded. It becomes an integer from -127 to 127 times
the scale of its output. No weight moves by more than half its scale. So for a row x the exact
product for output n moves by at most scale[n] / 2 * sum|x|. CPUs keep weights in groups, which is
closer to them (`groups.py`).
"""

from __future__ import annotations

import torch
from torch import Tensor

FP8_SCALE_BYTES = 4  # bytes of an output's scale
_FP8_MULTIPLE = 16  # it divides inputs and outputs, or torch's product of float8 refuses them
_LEVELS = 127  # symmetric: -127 to 127


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


def int8_bytes(num_outputs: int, num_inputs: int, itemsize: int, *, has_bias: bool) -> int:
    """Return the memory of a weight in 8 bits with scales and a bias of `itemsize` bytes each."""
    return num_outputs * (num_inputs + itemsize * (2 if has_bias else 1))


def can_round_to_fp8(num_outputs: int, num_inputs: int) -> bool:
    """Return whether a weight of this shape can be one of `models.gpu.fp8`."""
    return num_outputs % _FP8_MULTIPLE == 0 and num_inputs % _FP8_MULTIPLE == 0
