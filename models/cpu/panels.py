"""Lays weights out in the panels that the compiled products read (`kernels/tile.py`).

Shape letters: P panels, I inputs, G groups of inputs.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.cpu.kernels.packed import HALF
from models.cpu.kernels.tile import PANEL
from models.layers.groups import GroupedWeight
from models.packed_form import GROUP


def in_panels(values: Tensor, *, is_gated: bool) -> Tensor:  # [outputs, n] -> [P, PANEL, n]
    """Return the outputs of each panel, zeros after the last; of a gated product both halves."""
    if not is_gated:
        missing = -len(values) % PANEL
        return nn.functional.pad(values, (0, 0, 0, missing)).unflatten(0, (-1, PANEL))
    half, num_outputs = PANEL // 2, len(values) // 2
    missing = -num_outputs % half
    halves = [
        nn.functional.pad(part, (0, 0, 0, missing)).unflatten(0, (-1, half))
        for part in values.split(num_outputs)
    ]
    return torch.cat(halves, 1)


def whole_panels(weight: Tensor, *, is_gated: bool) -> Tensor:
    """Return the panels of a weight [outputs, I]: [P, I, PANEL], bfloat16 by two inputs."""
    panels = in_panels(weight, is_gated=is_gated)
    if panels.dtype != torch.bfloat16:
        return panels.transpose(1, 2).contiguous()
    panels = nn.functional.pad(panels, (0, panels.shape[2] % 2))
    return panels.unflatten(2, (-1, 2)).transpose(1, 2).contiguous()


def packed_panels(weight: GroupedWeight, *, is_gated: bool) -> Tensor:
    """Return the panels of a weight in groups, [P, bytes] (`kernels/packed.py`)."""
    parts = [_factors(weight.scales, is_gated)]
    if weight.minima is not None:
        parts.append(_factors(weight.minima, is_gated))
    codes = in_panels(weight.codes, is_gated=is_gated).unflatten(1, (-1, HALF))
    codes = codes.unflatten(3, (-1, GROUP // 4, 4)).permute(0, 1, 3, 4, 2, 5)
    if weight.bits == 4:  # [P, 2, G, 8, HALF, 4] so far
        codes = codes[:, :, :, 0::2] | codes[:, :, :, 1::2] << 4
    parts.append(codes.flatten(3))
    return torch.cat(parts, 3).flatten(1)


def _factors(values: Tensor, is_gated: bool) -> Tensor:
    """Return scales or minima [outputs, G] as the bytes of blocks, [P, 2, G, 2 * HALF]."""
    panels = in_panels(values, is_gated=is_gated).unflatten(1, (-1, HALF))
    return panels.transpose(2, 3).contiguous().view(torch.uint8)
