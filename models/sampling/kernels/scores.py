"""Shared by the kernels of a draw: a row's terms, and its scores as they are read."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def real_term(terms, place):
    """float64 number `place` of the terms of all rows."""
    return tl.load(terms + place).to(tl.float64, bitcast=True)


@triton.jit
def load_scores(row, columns, vocab_size, temperature):
    """Logits over the temperature, float32; -inf behind the last column. Temperature 0: logits."""
    logits = tl.load(row + columns, mask=columns < vocab_size, other=-float("inf"))
    return tl.div_rn(logits, tl.where(temperature > 0.0, temperature, 1.0))
