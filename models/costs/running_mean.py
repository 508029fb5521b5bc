"""The exponential running mean by which engines know how long things take them."""

from __future__ import annotations

_SMOOTHING = 0.2  # weight of the newest value


def running_mean(mean: float | None, value: float, share: float = _SMOOTHING) -> float:
    """The exponential running mean after one more value; None: there was none before."""
    return value if mean is None else mean + share * (value - mean)
