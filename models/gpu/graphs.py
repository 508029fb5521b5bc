"""Passes replayed from captured graphs: fixed input buffers, one graph per bucket.

`BucketedPasses` writes a pass's padded index arrays into buffers whose addresses never change,
replays the graph of the bucket, and hands out the rows that are real. Which bucket is
`buckets`' matter, what padding means that of `indices`. What "capture" is depends on
the backend: `CudaGraphs` records the kernels, `EagerGraphs` calls the function again, which tests
everything but the recording on any machine.

CudaGraphs has never run on a GPU so far: `tests/gpu` holds what must pass there first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from models.device import copy_into
from models.gpu.buckets import Bucket, BucketPlan
from models.gpu.indices import PassShape, PassTensors, index_pass, padded_shape
from models.kv.rows import SequenceRows
from models.kv.storage import KVBlocks

_WARM_UPS = 2  # calls before recording: kernels load and tune themselves on their first ones

_logger = logging.getLogger(__name__)


class GraphBackend(Protocol):
    """Records a function of no arguments and gives back what replays it."""

    def capture(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """Replaying returns the same tensor each time, overwritten."""
        ...

    def used_bytes(self) -> int:
        """Device memory in use, for the bound on what graphs may take."""
        ...

    def release(self) -> None:
        """Give back the memory of graphs that are gone."""
        ...


class EagerGraphs:
    """Computes again on every replay, into one output tensor as a graph would."""

    def capture(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """See `GraphBackend`."""
        output = compute().clone()

        def replay() -> Tensor:
            return output.copy_(compute())

        return replay

    def used_bytes(self) -> int:
        """Not known."""
        return 0

    def release(self) -> None:
        """Nothing is held."""


class CudaGraphs:
    """CUDA graphs that share one memory pool. Replays must follow each other on one stream."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def capture(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """See `GraphBackend`. The graph lives as long as what is returned."""
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                compute()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        # Other threads of the process may use the device meanwhile: only this one's calls count.
        with torch.cuda.graph(
            graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
        ):
            output = compute()

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay

    def used_bytes(self) -> int:
        """Memory of the device that is taken, by whomever."""
        free, total = torch.cuda.mem_get_info(self._device)
        return total - free

    def release(self) -> None:
        """See `GraphBackend`."""
        torch.cuda.empty_cache()


Compute = Callable[[PassTensors, int], Tensor]  # (tensors, rows of one session) -> logits [R, V]


@dataclass(frozen=True, slots=True)
class _Captured:
    tensors: PassTensors
    replay: Callable[[], Tensor]


class BucketedPasses:
    """Graphs of all buckets of a plan, captured when made.

    Args:
        backend: what captures.
        plan: the buckets wanted; those that did not fit are gone from it afterwards.
        compute: the forward pass over index tensors; it must neither look at a value nor
            allocate what outlives it.
        blocks: the keys and values of the passes; padded rows put theirs in its null block.
        table_width: blocks of the longest possible session.
        max_bytes: device memory that graphs may take; None: no bound.
    """

    def __init__(
        self,
        backend: GraphBackend,
        plan: BucketPlan,
        compute: Compute,
        blocks: KVBlocks,
        *,
        table_width: int,
        max_bytes: int | None = None,
    ) -> None:
        self.plan = plan
        self._blocks = blocks
        self._table_width = table_width
        device = blocks.device
        largest = self._shape(plan.buckets[-1])
        self._longs = torch.zeros(largest.num_longs, dtype=torch.int64, device=device)
        self._ints = torch.zeros(largest.num_ints, dtype=torch.int32, device=device)
        self._graphs: dict[Bucket, _Captured] = {}
        self._capture(backend, compute, max_bytes)

    def run(
        self,
        sequences: Sequence[SequenceRows],
        bucket: Bucket,
        drawn_ids: Tensor | None = None,
    ) -> Tensor:
        """Logits [R, V] of the rows of `sequences`, good until the next run.

        Args:
            sequences: a pass that fits `bucket`, which is one of the plan's.
            bucket: from `plan.choose`.
            drawn_ids: [R] the rows' ids where the host does not know them yet.
        """
        captured = self._graphs[bucket]
        self._write(bucket, sequences)
        num_rows = sum(len(rows.token_ids) for rows in sequences)
        if drawn_ids is not None:
            captured.tensors.token_ids[:num_rows].copy_(drawn_ids)
        return captured.replay()[:num_rows]

    def _capture(self, backend: GraphBackend, compute: Compute, max_bytes: int | None) -> None:
        first_bytes = backend.used_bytes()
        for bucket in self.plan.capture_order:
            shape = self._shape(bucket)
            tensors = PassTensors.cut(shape, self._longs, self._ints)
            self._write(bucket, ())  # nothing but padding, which concerns nobody

            def call(tensors: PassTensors = tensors, bucket: Bucket = bucket) -> Tensor:
                return compute(tensors, bucket.session_rows)

            captured = _Captured(tensors, backend.capture(call))
            taken = backend.used_bytes() - first_bytes
            if max_bytes is None or taken <= max_bytes:
                self._graphs[bucket] = captured
                continue
            _logger.warning("graph of %s takes %d bytes of %d: left out", bucket, taken, max_bytes)
            del captured
            backend.release()
        self.plan.keep(self._graphs)

    def _shape(self, bucket: Bucket) -> PassShape:
        return padded_shape(bucket.num_rows, self._table_width)

    def _write(self, bucket: Bucket, sequences: Sequence[SequenceRows]) -> None:
        """The padded arrays of a pass, into the buffers."""
        blocks = self._blocks
        arrays = index_pass(sequences, self._shape(bucket), blocks.block_size, blocks.null_block)
        for buffer, array in zip((self._longs, self._ints), arrays, strict=True):
            copy_into(buffer[: len(array)], array)
