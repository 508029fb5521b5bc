"""Weights of 4 or 8 bits in groups of `GROUP` inputs, each with a scale of its own.

A weight is by its code:

    8 bits  weight = scale * (code - 128), code from 1 to 255: 8.5 bits a weight
    4 bits  weight = scale * code + minimum, code from 0 to 15: 5 bits a weight

Scales and minima are float16. An output's factor is a power of two. It brings the scales into the
range of float16, so that weights may have any size. Products with such weights round their rows to
8 bits as well (`models/cpu/kernels/packed.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from models.packed_form import GROUP, OFFSET, group_bytes

Bits = Literal[4, 8]
TABLE_BITS: Bits = 8  # of an output layer that shares the embedding's weight
_LEVELS = {8: 127, 4: 15}
_SYMMETRIC = 8  # code of zero where the largest 4-bit weight of a group sets the scale
_FACTOR_BYTES = 4
# Rows that are rounded at once: a few copies of them are held meanwhile.
_NUMBERS_AT_ONCE = 1 << 19


@dataclass(frozen=True, slots=True)
class GroupedWeight:
    """Codes of a weight and what they mean; N outputs, I inputs, G groups."""

    codes: Tensor  # [N, G * GROUP] uint8; those after the last input count for nothing
    scales: Tensor  # [N, G] float16
    minima: Tensor | None  # [N, G] float16; None: the codes have 8 bits
    factors: Tensor | None  # [N] float32; None: all are one
    num_inputs: int
    dtype: torch.dtype  # of the rows that it multiplies

    @property
    def bits(self) -> Bits:
        """Bits of a code."""
        return 8 if self.minima is None else 4

    @property
    def shape(self) -> tuple[int, int]:
        """Outputs and inputs."""
        return len(self.codes), self.num_inputs

    @property
    def num_bytes(self) -> int:
        """The memory that it takes in products, without what fills the last panel."""
        has_factors = self.factors is not None
        return grouped_bytes(*self.shape, self.bits, has_factors=has_factors)

    def rows(self, index: Tensor) -> GroupedWeight:
        """Return the weight of the outputs `index` [n] alone."""
        parts = (self.codes, self.scales, self.minima, self.factors)
        picked = [None if part is None else part[index] for part in parts]
        codes, scales, minima, factors = picked
        assert codes is not None
        assert scales is not None
        return GroupedWeight(codes, scales, minima, factors, self.num_inputs, self.dtype)

    def dequantized(self) -> Tensor:
        """Return the weight that products have, [N, I] float32."""
        codes = self.codes.float().unflatten(1, (-1, GROUP))
        scales = self.scales.float().unsqueeze(2)
        if self.minima is None:
            wide = scales * (codes - OFFSET)
        else:
            wide = scales * codes + self.minima.float().unsqueeze(2)
        if self.factors is not None:
            wide *= self.factors[:, None, None]
        return wide.flatten(1)[:, : self.num_inputs]


def group_weight(weight: Tensor, bits: Bits) -> GroupedWeight:
    """Round a weight [outputs, inputs] to codes; the nearest for their scales."""
    num_outputs, num_inputs = weight.shape
    at_once = max(1, _NUMBERS_AT_ONCE // max(1, num_inputs))
    parts = [_group_some(part, bits) for part in weight.detach().split(at_once)]
    codes, scales, minima, factors = (torch.cat(some) for some in zip(*parts, strict=True))
    return GroupedWeight(
        codes.view(num_outputs, -1),
        scales,
        minima if bits == 4 else None,
        factors,
        num_inputs,
        weight.dtype,
    )


def joined_groups(weights: Sequence[GroupedWeight]) -> GroupedWeight:
    """Return the weight of one product for weights of the same inputs and type of rows.

    If some have 8 bits and some 4, all come to have 8.
    """
    first = weights[0]
    if len(weights) == 1:
        return first
    if len({weight.bits for weight in weights}) > 1:
        wide = torch.cat([weight.dequantized() for weight in weights])
        return replace(group_weight(wide, 8), dtype=first.dtype)
    has_factors = any(weight.factors is not None for weight in weights)
    factors = [
        torch.ones(len(weight.codes)) if weight.factors is None else weight.factors
        for weight in weights
    ]
    minima = [weight.minima for weight in weights if weight.minima is not None]
    return GroupedWeight(
        torch.cat([weight.codes for weight in weights]),
        torch.cat([weight.scales for weight in weights]),
        torch.cat(minima) if minima else None,
        torch.cat(factors) if has_factors else None,
        first.num_inputs,
        first.dtype,
    )


def grouped_bytes(
    num_outputs: int, num_inputs: int, bits: Bits, *, has_factors: bool = True
) -> int:
    """Return the memory of a grouped weight, without what fills its last panel."""
    num_groups = -(-num_inputs // GROUP)
    return num_outputs * (num_groups * group_bytes(bits) + _FACTOR_BYTES * has_factors)


def _group_some(weight: Tensor, bits: Bits) -> tuple[Tensor, ...]:
    """Return codes [N, G, GROUP], scales, minima and factors."""
    wide = weight.float()
    wide = torch.nn.functional.pad(wide, (0, -wide.shape[1] % GROUP)).unflatten(1, (-1, GROUP))
    _, exponents = torch.frexp(wide.abs().amax((1, 2)))
    factors = torch.ldexp(torch.ones(len(exponents)), exponents)  # every weight is below one then
    wide = wide / factors[:, None, None]
    codes, scales, minima = _group8(wide) if bits == 8 else _group4(wide)
    return codes, scales, minima, factors


def _group8(wide: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    scales = (wide.abs().amax(2) / _LEVELS[8]).half()
    codes = _nearest(wide, scales, torch.zeros(()), (-_LEVELS[8], _LEVELS[8])) + OFFSET
    return codes.to(torch.uint8), scales, scales


def _group4(wide: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Take for each group the better of two beginnings, by the squared error they come to."""
    least, most = wide.amin(2), wide.amax(2)
    largest = torch.where(most > -least, most, least)
    begins = ((most - least) / _LEVELS[4], least), (-largest / _SYMMETRIC, largest)
    tried = [_fitted4(wide, *begin) for begin in begins]
    errors = [_squared_error(wide, *one) for one in tried]
    is_second = errors[1] < errors[0]
    codes = torch.where(is_second[..., None], tried[1][0], tried[0][0]).to(torch.uint8)
    scales, minima = (torch.where(is_second, tried[1][i], tried[0][i]) for i in (1, 2))
    return codes, scales, minima


def _fitted4(wide: Tensor, scales: Tensor, minima: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return codes, scales and minima: rounded, fitted to their codes, and rounded again."""
    codes = _nearest(wide, scales.half(), minima.half(), (0, _LEVELS[4]))
    scales, minima = (one.half() for one in _least_squares(wide, codes))
    return _nearest(wide, scales, minima, (0, _LEVELS[4])), scales, minima


def _squared_error(wide: Tensor, codes: Tensor, scales: Tensor, minima: Tensor) -> Tensor:
    found = torch.addcmul(minima.float()[..., None], codes, scales.float()[..., None])
    return found.sub_(wide).square_().sum(2)


def _least_squares(wide: Tensor, codes: Tensor) -> tuple[Tensor, Tensor]:
    """Return the scale and minimum of each group that fit its codes best."""
    mean_code, mean = codes.mean(2), wide.mean(2)
    apart = codes - mean_code[..., None]
    spread = apart.square().sum(2)
    scales = (apart * wide).sum(2) / spread.clamp_(min=1e-30)
    return scales, mean - scales * mean_code


def _nearest(wide: Tensor, scales: Tensor, minima: Tensor, limits: tuple[int, int]) -> Tensor:
    """Return the nearest codes within limits, as floats; the least where the scale is zero."""
    scales = scales.float()[..., None]
    from_least = wide - minima.float()[..., None]
    codes = torch.where(scales == 0, 0.0, from_least / scales).round_()
    return codes.clamp_(*limits)
