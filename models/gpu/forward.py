"""The forward pass over paged KV: what a runner does where there is a paged attention kernel.

Passes whose shape has a bucket are replayed from captured graphs, the others are run as they are.
The graphs are captured when a `VarlenForward` is made; whether they give what eager passes give is
up to the kernels, whose tiles may depend on the shape, and is what `self_test` measures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from models.device import to_device
from models.gpu.buckets import BucketPlan
from models.gpu.graphs import BucketedPasses, GraphBackend
from models.gpu.indices import PassTensors, exact_shape, index_pass, upload
from models.gpu.kernel import VarlenKernel, VarlenPass
from models.kv.pages import PageStorage
from models.kv.rows import SequenceRows

# Logits [n, V] of the rows in the last argument, or of all rows where it is None.
Model = Callable[[Tensor, Tensor, VarlenPass, Tensor | None], Tensor]


class VarlenForward:
    """Runs passes of one model on one device.

    Args:
        model: the forward pass: ids [R], positions [R], the pass, rows wanted.
        storage: where keys and values are.
        kernel: attends.
        max_model_len: tokens a session may have.
        windows: of each layer's attention.
    """

    def __init__(
        self,
        model: Model,
        storage: PageStorage,
        kernel: VarlenKernel,
        max_model_len: int,
        windows: tuple[int | None, ...] = (),
    ) -> None:
        self.storage = storage
        self._model = model
        self._kernel = kernel
        self._max_model_len = max_model_len
        self._windows = windows
        self._graphs: BucketedPasses | None = None

    @torch.inference_mode()
    def capture(self, backend: GraphBackend, plan: BucketPlan, max_bytes: int | None) -> None:
        """Capture the graphs of `plan`; passes that fit one are replayed from now on."""

        def compute(tensors: PassTensors, session_rows: int) -> Tensor:
            paged = VarlenPass(
                self.storage,
                self._kernel,
                tensors,
                session_rows,
                self._max_model_len,
                self._windows,
            )
            return self._model(tensors.token_ids, tensors.positions, paged, None).float()

        self._graphs = BucketedPasses(
            backend,
            plan,
            compute,
            block_size=self.storage.block_size,
            null_block=self.storage.null_block,
            table_width=-(-self._max_model_len // self.storage.block_size),
            device=self.storage.device,
            max_bytes=max_bytes,
        )

    def __call__(
        self,
        sequences: Sequence[SequenceRows],
        num_logits: Sequence[int],
        drawn_ids: Tensor | None = None,
    ) -> Tensor:
        """Logits [sum of num_logits, V] float32 of each sequence's last rows.

        They are good until the next pass.

        Args:
            sequences: one session's rows each.
            num_logits: rows of each that are wanted.
            drawn_ids: [R] ids of all rows, on the device, in place of those of `sequences`.
        """
        counts = [len(rows.token_ids) for rows in sequences]
        wanted = last_rows(counts, num_logits)
        is_whole = len(wanted) == sum(counts)
        keep = None if is_whole else to_device(wanted, self.storage.device, torch.int64)
        bucket = self._graphs.plan.choose(counts, num_logits) if self._graphs else None
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
        return self._model(ids, tensors.positions, paged, keep).float()


def last_rows(counts: Sequence[int], num_wanted: Sequence[int]) -> list[int]:
    """The rows of a pass that are the last `num_wanted` of each session's `counts`."""
    rows: list[int] = []
    stop = 0
    for count, wanted in zip(counts, num_wanted, strict=True):
        stop += count
        rows.extend(range(stop - wanted, stop))
    return rows
