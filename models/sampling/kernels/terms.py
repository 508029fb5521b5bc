"""Packs the terms of each row for the kernels of a draw, to be uploaded at once.

A row has five numbers of 64 bits, real ones by their bits. They are the stream of its noise, the
temperature, min-p as the depth below the best score, top-k and top-p.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

NUM_TERMS = 5
STREAM, TEMPERATURE, DEPTH, TOP_K, TOP_P = range(NUM_TERMS)


def pack_terms(
    streams: np.ndarray,  # [R] int64
    terms: Sequence[tuple[float, float, int, float]],
    kinds: Sequence[int],  # [R] places in `terms`
) -> np.ndarray:  # [R, NUM_TERMS] int64
    """Pack the terms of all rows.

    Args:
        streams: of each row.
        terms: of each kind of row its temperature (0: no noise), log(min_p) or -inf, top_k (at
            least 1; V: off) and top_p.
        kinds: of each row.
    """
    by_kind = np.array(terms, dtype=np.float64).view(np.int64)
    by_kind[:, TOP_K - TEMPERATURE] = [top_k for _, _, top_k, _ in terms]
    packed = np.empty((len(streams), NUM_TERMS), dtype=np.int64)
    packed[:, STREAM] = streams
    packed[:, TEMPERATURE:] = by_kind[kinds]
    return packed
