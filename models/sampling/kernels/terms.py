"""Packs the terms of each row for the kernels of a draw, in one upload.

A row has five numbers of 64 bits, real ones by their bits. They are the stream of its noise, the
temperature, min-p as the depth below the best score, top-k and top-p.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from models.device import array_to_device

NUM_TERMS = 5
STREAM, TEMPERATURE, DEPTH, TOP_K, TOP_P = range(NUM_TERMS)
_ROW = struct.Struct("=qddqd")


def pack_terms(
    rows: Iterable[tuple[int, float, float, int, float]],
) -> np.ndarray:  # [R, NUM_TERMS] int64
    """Pack the terms of all rows.

    Args:
        rows: of each row its stream, its temperature (0: no noise), log(min_p) or -inf, top_k (at
            least 1; V: off) and top_p.
    """
    packed = b"".join(_ROW.pack(*row) for row in rows)
    return np.frombuffer(bytearray(packed), dtype=np.int64).reshape(-1, NUM_TERMS)


def upload_terms(
    rows: Iterable[tuple[int, float, float, int, float]], device: torch.device
) -> Tensor:  # [R, NUM_TERMS] int64
    """`pack_terms` on the device of the logits."""
    return array_to_device(pack_terms(rows), device)
