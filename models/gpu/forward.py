"""The back-end of a paged attention kernel.

Passes whose shape has a bucket are replayed from captured graphs, the others are run as they are.
The graphs are captured when a `PagedBackend` is made. Their results may differ from those of eager
passes, because the kernels' tiles may depend on the shape. `self_test` measures it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from models.attention.backend import DraftLayer, ModelForward, Tiling, last_rows
from models.device import to_device
from models.gpu.buckets import BucketPlan
from models.gpu.chains import DraftChains
from models.gpu.graphs import BucketedPasses, GraphBackend, GraphsKept, GraphTerms
from models.gpu.indices import PassTensors, exact_shape, index_pass, upload
from models.gpu.kernel import VarlenKernel, VarlenPass
from models.kv.pages import PageStorage
from models.kv.rows import SequenceRows


class PagedBackend:
    """Implements `AttentionBackend`.

    Args:
        forward: the model's layers.
        storage: where keys and values are.
        kernel: attends.
        max_model_len: tokens a session may have.
        windows: of each layer's attention.
    """

    tilings: tuple[Tiling, ...] = ((),)  # the kernel's own
    stores_shared_rows = False  # nothing drafts here that would have trees

    def __init__(
        self,
        forward: ModelForward,
        storage: PageStorage,
        kernel: VarlenKernel,
        max_model_len: int,
        windows: tuple[int | None, ...] = (),
    ) -> None:
        self.storage = storage
        self._forward = forward
        self._kernel = kernel
        self._max_model_len = max_model_len
        self._windows = windows
        self._graphs: BucketedPasses | None = None
        self.chains: DraftChains | None = None  # once captured

    @torch.inference_mode()
    def capture(self, backend: GraphBackend, plan: BucketPlan, terms: GraphTerms) -> None:
        """Capture the graphs of `plan`; passes that fit one are replayed from now on."""
        self._graphs = BucketedPasses(
            backend,
            plan,
            self._compute,
            self.storage,
            table_width=self._table_width,
            terms=terms,
        )

    @torch.inference_mode()
    def capture_chains(
        self,
        backend: GraphBackend,
        finish: Callable[[Tensor], Tensor],
        vocab_size: int,
        terms: GraphTerms,
    ) -> None:
        """Capture draft steps with their draws.

        Args:
            backend: the one that has captured the passes, whose memory these share.
            finish: the logits of ids that may be drawn, [R, vocab_size], of a pass's.
            vocab_size: their number.
            terms: what bounds the number of graphs.
        """
        self.chains = DraftChains(
            backend,
            lambda tensors: finish(self._compute(tensors, 1).float()),
            self.storage,
            table_width=self._table_width,
            vocab_size=vocab_size,
            terms=terms,
        )

    @property
    def _table_width(self) -> int:
        return -(-self._max_model_len // self.storage.block_size)

    def _compute(self, tensors: PassTensors, session_rows: int) -> Tensor:
        """Compute a pass as it is captured, whatever its sessions are."""
        paged = VarlenPass(
            self.storage, self._kernel, tensors, session_rows, self._max_model_len, self._windows
        )
        return self._forward(tensors.token_ids, tensors.positions, paged, None)

    @property
    def name(self) -> str:
        """The kernel's."""
        return self._kernel.name

    @property
    def reads_unwritten(self) -> bool:
        """See `AttentionBackend`; the kernel's."""
        return self._kernel.reads_unwritten

    @property
    def graphs(self) -> GraphsKept:
        """The captured graphs."""
        kept = GraphsKept() if self._graphs is None else self._graphs.kept
        return kept if self.chains is None else kept + self.chains.kept

    def use_tiling(self, tiling: Tiling) -> None:
        """See `AttentionBackend`; there is one."""

    def logits(
        self,
        sequences: Sequence[SequenceRows],
        drawn_ids: Tensor | None = None,
        layer: DraftLayer | None = None,
    ) -> Tensor:
        """See `AttentionBackend`; there is no layer that drafts (`MergedDecoder.keep_hidden`)."""
        assert layer is None, "heads are not served around a paged kernel"
        counts = [len(rows.token_ids) for rows in sequences]
        wanted = last_rows(sequences)
        is_whole = len(wanted) == sum(counts)
        keep = None if is_whole else to_device(wanted, self.storage.device, torch.int64)
        bucket = self._graphs.plan.choose(counts) if self._graphs else None
        if self._graphs is not None and bucket is not None:
            logits = self._graphs.run(sequences, bucket, drawn_ids)
            return logits if keep is None else logits.index_select(0, keep)
        return self._run(sequences, keep, drawn_ids)

    def _run(
        self, sequences: Sequence[SequenceRows], keep: Tensor | None, drawn_ids: Tensor | None
    ) -> Tensor:
        storage = self.storage
        shape = exact_shape(sequences, storage.block_size)
        arrays = index_pass(sequences, shape, storage.block_size, storage.null_block)
        tensors = upload(arrays, shape, storage.device)
        paged = VarlenPass(
            storage,
            self._kernel,
            tensors,
            max_rows=max(len(rows.token_ids) for rows in sequences),
            max_keys=max(rows.start + len(rows.token_ids) for rows in sequences),
            windows=self._windows,
        )
        ids = tensors.token_ids if drawn_ids is None else drawn_ids
        return self._forward(ids, tensors.positions, paged, keep).float()
