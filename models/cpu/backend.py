"""The back-end of compiled CPU kernels: they read keys where they lie, and no others."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from models.attention.backend import DraftLayer, ModelForward, Tiling
from models.cpu.batch import CpuPlanner, LaneStorage
from models.cpu.fused_decoder import FusedDecoder
from models.kv.rows import SequenceRows


class KernelBackend:
    """Implements `AttentionBackend`.

    Args:
        forward: the model's layers.
        storage: for its keys and values.
        windows: of each layer, None where a row sees all positions before it.
    """

    name = "compiled"
    reads_unwritten = False
    stores_shared_rows = True
    tilings: tuple[Tiling, ...] = ((),)  # the kernels' own

    def __init__(
        self, forward: ModelForward, storage: LaneStorage, windows: tuple[int | None, ...]
    ) -> None:
        self.storage = storage
        self._forward = forward
        self._planner = CpuPlanner(storage, windows)
        if isinstance(forward, FusedDecoder):
            forward.use(storage)

    def use_tiling(self, tiling: Tiling) -> None:
        """See `AttentionBackend`; there is one."""

    def logits(
        self,
        sequences: Sequence[SequenceRows],
        drawn_ids: Tensor | None = None,
        layer: DraftLayer | None = None,
    ) -> Tensor:
        """See `AttentionBackend`."""
        paged = self._planner(sequences)
        ids = paged.token_ids if drawn_ids is None else drawn_ids
        forward = layer or self._forward
        return forward(ids, paged.positions, paged, paged.kept).float()
