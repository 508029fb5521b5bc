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


def draw_noisy(
    logits: Tensor,  # [R, V] float32
    streams: np.ndarray,  # [R] int64 from `stream_keys`
    temperatures: np.ndarray,  # [R] float32; 0: the row's largest logit itself
) -> Tensor:  # [R] int64
    """Return argmax(logit / temperature + noise) of each row, the lowest id where values tie.

    A row of nothing but -inf gives token 0.
    """
    logits = logits.contiguous()
    ids = torch.empty(len(logits), dtype=torch.int64)
    call = _call()
    given = call.parameters
    given[draw.NUM_DRAWN], given[draw.NUM_SCORES] = logits.shape
    given[draw.SCORES], given[draw.IDS] = logits.data_ptr(), ids.data_ptr()
    given[draw.STREAMS], given[draw.TEMPERATURES] = streams.ctypes.data, temperatures.ctypes.data
    is_short = logits.numel() < _PARALLEL_SCORES
    call.run(1 if is_short else min(torch.get_num_threads(), len(logits)))
    return ids


def _call() -> Call:
    call: Call | None = getattr(_own, "call", None)
    if call is None:
        call = _own.call = Call(draw.draw_rows, draw.NUM_PARAMETERS)
    return call
