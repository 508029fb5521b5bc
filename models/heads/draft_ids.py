"""Output layers of what drafts: for all ids, for some, and for one rank's share of them.

Shape letters: N draft ids, V vocabulary of the target, W the words of one rank, F hidden size.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from models.layers.linear import MakeLinear, plain_linear


def draft_ids(name: str, offsets: Tensor | None, vocab_size: int) -> Tensor | None:
    """Return the ids [N] that a head drafts; None: all.

    Each entry of `d2t` is an id less its place.

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


@dataclass(frozen=True, slots=True)
class Words:
    """The ids whose logits are made here: all, or of ranks that share a model this one's.

    Attributes:
        first: of them.
        num: W, as many on every rank.
        total: V.
    """

    first: int
    num: int
    total: int

    def rows(self, weight: Tensor, ids: Tensor | None) -> Tensor:
        """Return the rows of these words in an output layer [N, F] for `ids` [N], or for all."""
        if self.num == self.total:
            return weight
        if ids is None:
            return weight[self.first : self.first + self.num].clone()
        return weight[self._has(ids)]

    def places(self, ids: Tensor | None) -> Tensor | None:
        """Return the places in `ids` [N] that are among these words; None: all of them."""
        return None if ids is None else ids[self._has(ids)] - self.first

    def _has(self, ids: Tensor) -> Tensor:
        return (ids >= self.first) & (ids < self.first + self.num)


class IdsOutput(nn.Module):
    """An output layer for some ids of a vocabulary.

    Args:
        weight: [N, F].
        ids: [N] of its rows; None: they are all.
        vocab_size: of the logits.
        make_linear: makes the product.
    """

    def __init__(
        self,
        weight: Tensor,
        ids: Tensor | None,
        vocab_size: int,
        make_linear: MakeLinear = plain_linear,
    ) -> None:
        super().__init__()
        # A rank may have none of the ids.
        self.linear: nn.Module | None = make_linear(weight, None) if len(weight) else None
        self._ids, self._vocab_size = ids, vocab_size

    def forward(self, rows: Tensor) -> Tensor:  # [..., F] -> [..., V] float32
        """Logits of all ids, -inf for those that it is not for."""
        if self.linear is None:
            shape = (*rows.shape[:-1], self._vocab_size)
            return rows.new_full(shape, -torch.inf, dtype=torch.float32)
        return on_all_ids(self.linear(rows).float(), self._ids, self._vocab_size)
