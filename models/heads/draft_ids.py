"""Heads that draft some of the target's ids only.

Shape letters: N draft ids, V vocabulary of the target.
"""

from __future__ import annotations

import torch
from torch import Tensor


def draft_ids(name: str, offsets: Tensor | None, vocab_size: int) -> Tensor | None:
    """The ids [N] that a head drafts, from `d2t` [N]: each less its place. None: all.

    Args:
        name: of the folder, for refusals.
        offsets: as they are stored.
        vocab_size: V.

    Raises:
        ValueError: an id is none of the target's.
    """
    if offsets is None:
        return None
    ids = offsets.to(torch.int64) + torch.arange(len(offsets))
    if not 0 <= int(ids.min()) <= int(ids.max()) < vocab_size:
        raise ValueError(f"{name}: d2t has ids beyond {vocab_size - 1}")
    return ids


def on_all_ids(logits: Tensor, ids: Tensor | None, vocab_size: int) -> Tensor:
    """Logits [..., V] of those [..., N] of `ids`: -inf for all others; None: they are all."""
    if ids is None:
        return logits
    whole = logits.new_full((*logits.shape[:-1], vocab_size), -torch.inf)
    return whole.index_copy_(-1, ids, logits)
