"""The back-end that copies a pass's keys together and attends by torch's own operations.

It serves everywhere and everything; the others are faster where they are available.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from models.attention.backend import DraftLayer, ModelForward, Tiling, input_ids, last_rows
from models.attention.gather_plan import FITTING_TILES, FIXED_TILES, plan_pass
from models.device import to_device
from models.kv.rows import SequenceRows
from models.kv.storage import KVStorage


class GatherBackend:
    """Implements `AttentionBackend`.

    Args:
        forward: the model's layers.
        storage: for its keys and values.
        num_groups: query heads for each key head.
        windows: of each layer, None where a row sees all positions before it.
    """

    name = "gather"
    reads_unwritten = True
    stores_shared_rows = True
    tilings = (FITTING_TILES, FIXED_TILES)

    def __init__(
        self,
        forward: ModelForward,
        storage: KVStorage,
        num_groups: int,
        windows: tuple[int | None, ...],
    ) -> None:
        self.storage = storage
        self._forward = forward
        self._num_groups = num_groups
        self._windows = windows
        self._tiling: Tiling = self.tilings[0]

    def use_tiling(self, tiling: Tiling) -> None:
        """See `AttentionBackend`."""
        self._tiling = tiling

    def logits(
        self,
        sequences: Sequence[SequenceRows],
        drawn_ids: Tensor | None = None,
        layer: DraftLayer | None = None,
    ) -> Tensor:
        """See `AttentionBackend`."""
        device = self.storage.device
        positions = [p for s in sequences for p in range(s.start, s.start + len(s.token_ids))]
        paged = plan_pass(sequences, self.storage, self._num_groups, self._windows, self._tiling)
        ids = input_ids(sequences, device, drawn_ids)
        keep = to_device(last_rows(sequences), device, torch.int64)
        forward = layer or self._forward
        return forward(ids, to_device(positions, device), paged, keep).float()
