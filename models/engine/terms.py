"""Whether a session's terms are such that passes can be drawn by them.

Clients' values are checked with narrower limits where they come in; here a peer of another version,
or a broken one, must not bring down the pass of everybody.
"""

from __future__ import annotations

import math

from models.protocol.messages import Open

_LARGEST = 1e6  # of what is added to or multiplied with a logit: float32 keeps a finite score


def check_terms(opened: Open) -> None:
    """Look at the numbers of `opened`.

    Raises:
        ValueError: one of them is out of range; names it, its limits and its value.
    """
    sampling = opened.sampling
    limits: list[tuple[str, float, float, float]] = [
        ("temperature", sampling.temperature, 0.0, _LARGEST),
        ("top_p", sampling.top_p, 0.0, 1.0),
        ("min_p", sampling.min_p, 0.0, 1.0),
        ("top_k", sampling.top_k, 0, math.inf),
        ("presence_penalty", sampling.presence_penalty, -_LARGEST, _LARGEST),
        ("frequency_penalty", sampling.frequency_penalty, -_LARGEST, _LARGEST),
        ("repetition_penalty", sampling.repetition_penalty, 1.0 / _LARGEST, _LARGEST),
        *(("logit_bias", bias, -_LARGEST, _LARGEST) for _, bias in sampling.logit_bias),
        ("prompt_len", opened.prompt_len, 0, math.inf),
    ]
    for name, value, low, high in limits:
        if not low <= value <= high:  # NaN is not
            raise ValueError(f"{name} must be within {low:g}..{high:g}, got {value:g}")
