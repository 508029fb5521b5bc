"""A decoder's first layers as a program of their own, which drafts."""

from __future__ import annotations

from torch import Tensor

from models.attention.early_exit import NUM_TOKENS
from models.cpu.batch import CpuPass, LaneStorage
from models.cpu.fused_decoder import FusedDecoder


class FusedExit:
    """Implements `DraftLayer`. Its weights are the decoder's.

    Args:
        decoder: of the whole model.
        num_layers: that draft.
    """

    num_tokens, num_bytes, takes_states, hidden = NUM_TOKENS, 0, False, None

    def __init__(self, decoder: FusedDecoder, num_layers: int) -> None:
        self._decoder = decoder.first_layers(num_layers)

    def use(self, storage: LaneStorage) -> None:
        """Keep keys and values in `storage`. Call it once, before the first pass."""
        self._decoder.use(storage)

    def take(self, states: Tensor) -> None:
        """See `DraftLayer`."""
        raise AssertionError("the first layers take no states")

    def __call__(
        self, token_ids: Tensor, positions: Tensor, paged: CpuPass, keep: Tensor | None
    ) -> Tensor:
        """See `DraftLayer`."""
        return self._decoder(token_ids, positions, paged, keep)
