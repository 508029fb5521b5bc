"""The exponential running mean by which engines know how long things take them."""

from __future__ import annotations


def running_mean(mean: float | None, value: float, share: float) -> float:
    """Returns the mean after one more value, which weighs `share` in it; None: it is the first."""
    return value if mean is None else mean + share * (value - mean)
