"""Weights in groups: how far they are from what they were."""

from __future__ import annotations

import pytest
import torch

from models.layers.groups import Bits, group_weight
from models.packed_form import GROUP

# Of random weights: their norm's part that is lost.
MOST_LOST = {8: 0.006, 4: 0.08}


@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("size", [1e-30, 1e-4, 1.0, 1e20])
def test_weights_of_any_size_lose_little(bits: Bits, size: float) -> None:
    torch.manual_seed(0)
    weight = size * torch.randn(40, 100)
    weight[3] = 0
    found = group_weight(weight, bits).dequantized()
    assert found.shape == weight.shape
    assert found[3].eq(0).all()
    lost = (found - weight).double() / size
    assert 0 < lost.norm() / (weight.double() / size).norm() < MOST_LOST[bits]


@pytest.mark.parametrize("bits", [8, 4])
def test_an_outlier_harms_its_group_only(bits: Bits) -> None:
    torch.manual_seed(0)
    weight = torch.randn(2, 3 * GROUP)
    before = group_weight(weight, bits).dequantized()
    weight[0, GROUP] = 100
    after = group_weight(weight, bits).dequantized()
    is_group = torch.zeros(2, 3 * GROUP, dtype=torch.bool)
    is_group[0, GROUP : 2 * GROUP] = True
    torch.testing.assert_close(after[~is_group], before[~is_group], rtol=0.01, atol=0.001)


def test_weights_that_were_of_4_bits_before_are_found_again() -> None:
    """A checkpoint may be one of 4 bits that was multiplied out."""
    torch.manual_seed(0)
    codes = torch.randint(-8, 8, (20, 4, GROUP)).float()
    codes[..., 0] = -8
    weight = (codes * torch.rand(20, 4, 1)).flatten(1)
    found = group_weight(weight, 4).dequantized()
    torch.testing.assert_close(found, weight, rtol=2e-3, atol=4e-3)


def test_wide_weights_are_rounded_in_parts_as_a_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    weight = torch.randn(50, 64)
    whole = group_weight(weight, 4)
    monkeypatch.setattr("models.layers.groups._NUMBERS_AT_ONCE", 64 * 7)
    parts = group_weight(weight, 4)
    assert torch.equal(parts.codes, whole.codes)
    assert torch.equal(parts.dequantized(), whole.dequantized())
