"""Draws tokens on a CPU by one kernel, in place of torch's dozen passes over numbers of 64 bits."""

from __future__ import annotations

import threading

import numpy as np
import torch
from torch import Tensor

from models.cpu.kernels import draw
from models.cpu.kernels.compiling import Call

_PARALLEL_SCORES = 1 << 16  # in all rows: fewer are sooner drawn by one thread
_own = threading.local()  # a call is for one thread at a time


def draw_by_terms(
    logits: Tensor,  # [R, V] float32
    terms: np.ndarray,  # [R, NUM_TERMS] int64 from `pack_draws`
) -> Tensor:  # [R] int64
    """Return argmax(logit / temperature + noise) of what the terms leave of each row.

    The lowest id counts where values tie. A row of nothing but -inf gives token 0.
    """
    logits = logits.float().contiguous()
    num_rows, num_scores = logits.shape
    is_short = logits.numel() < _PARALLEL_SCORES
    num_threads = 1 if is_short else min(torch.get_num_threads(), num_rows)
    keys = torch.empty(num_threads, num_scores, dtype=torch.int64)  # hardly any are touched
    ids = torch.empty(num_rows, dtype=torch.int64)
    call = _call()
    given = call.parameters
    given[draw.NUM_DRAWN], given[draw.NUM_SCORES] = num_rows, num_scores
    given[draw.LOGITS], given[draw.TERMS] = logits.data_ptr(), terms.ctypes.data
    given[draw.KEYS], given[draw.IDS] = keys.data_ptr(), ids.data_ptr()
    call.run(num_threads)
    return ids


def _call() -> Call:
    call: Call | None = getattr(_own, "call", None)
    if call is None:
        call = _own.call = Call(draw.draw_rows, draw.NUM_PARAMETERS)
    return call
