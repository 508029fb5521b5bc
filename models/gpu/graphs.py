"""Passes replayed from captured graphs: fixed input buffers, one graph per bucket.

`BucketedPasses` writes a pass's padded index arrays into buffers whose addresses never change. Then
it replays the graph of the bucket, and returns the rows that are real. Which bucket is `buckets`'
matter, what padding means that of `indices`. The meaning of "capture" depends on the backend.
`CudaGraphs` records the kernels. `EagerGraphs` calls the function again, which tests everything but
the recording on any machine. `tests/gpu` holds what must pass on a GPU.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch import Tensor

from models.device import copy_into
from models.gpu.buckets import Bucket, BucketPlan
from models.gpu.indices import PassShape, PassTensors, index_pass
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
        """Device memory that this process holds, for the bound on what graphs may take."""
        ...

    def release(self) -> None:
        """Give back the memory of graphs that are gone."""
        ...


class EagerGraphs:
    """Computes again on every replay, which tests everything but the recording."""

    def capture(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """See `GraphBackend`."""
        compute()
        return compute

    def used_bytes(self) -> int:
        """Return 0: the bytes are not known."""
        return 0

    def release(self) -> None:
        """Release nothing, because nothing is held."""


class CudaGraphs:
    """CUDA graphs that share one memory pool. Replays must follow each other on one stream.

    Where something cannot be recorded, torch may go on as if it were recording. So then nothing
    else is captured. Want of memory is no such reason.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._has_failed = False
        self._pool: Any = torch.cuda.graph_pool_handle()
        self._stream = torch.cuda.Stream(device)

    def capture(self, compute: Callable[[], Tensor]) -> Callable[[], Tensor]:
        """See `GraphBackend`. The graph lives as long as what is returned.

        Raises:
            RuntimeError: it cannot be recorded, or an earlier one could not.
        """
        if self._has_failed:
            raise RuntimeError("an earlier capture failed")
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for _ in range(_WARM_UPS):
                compute()
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        graph = torch.cuda.CUDAGraph()
        try:
            output = self._recorded(graph, compute)
        except RuntimeError as error:
            self._has_failed = not _is_of_memory(error)
            raise

        def replay() -> Tensor:
            graph.replay()
            return output

        return replay

    def _recorded(self, graph: torch.cuda.CUDAGraph, compute: Callable[[], Tensor]) -> Tensor:
        # Other threads of the process may use the device meanwhile: only this one's calls count. A
        # capture that fails leaves the thread on its stream, which this `stream` takes back.
        with (
            torch.cuda.stream(torch.cuda.current_stream(self._device)),
            torch.cuda.graph(
                graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"
            ),
        ):
            return compute()

    def used_bytes(self) -> int:
        """Memory that this process's torch holds: other processes on the device do not count."""
        return torch.cuda.memory_reserved(self._device)

    def release(self) -> None:
        """See `GraphBackend`."""
        torch.cuda.empty_cache()


Compute = Callable[[PassTensors, int], Tensor]  # (tensors, rows of one session) -> logits [R, V]
Agree = Callable[[bool], bool]  # true if all ranks say so; each of them asks, in the same order


def alone(is_so: bool) -> bool:
    """`Agree` of a rank that shares its model with nobody."""
    return is_so


class GraphTerms(NamedTuple):
    """Limits of the graphs: their device memory, and the agreement of all ranks."""

    max_bytes: int | None = None
    agree: Agree = alone


NO_TERMS = GraphTerms()


@dataclass(frozen=True, slots=True)
class GraphsKept:
    """The number of graphs, and the device memory that they take with their buffers."""

    num_graphs: int = 0
    num_bytes: int = 0

    def __add__(self, other: GraphsKept) -> GraphsKept:
        return GraphsKept(self.num_graphs + other.num_graphs, self.num_bytes + other.num_bytes)

    def __str__(self) -> str:
        return f"{self.num_graphs} graphs in {self.num_bytes / 2**20:.0f} MiB"


Key = TypeVar("Key", bound=Hashable)


def capture_each(
    backend: GraphBackend,
    wanted: Iterable[tuple[Key, Callable[[], Tensor]]],
    terms: GraphTerms,
    first_bytes: int,
) -> dict[Key, Callable[[], Tensor]]:
    """Capture each of `wanted`, in order, up to the first that does not fit; return their replays.

    Args:
        backend: captures.
        wanted: names and what they compute, each taken when those before it are captured.
        terms: what bounds them.
        first_bytes: used before there were any buffers for them.
    """
    captured: dict[Key, Callable[[], Tensor]] = {}
    for key, compute in wanted:
        replay = _captured(backend, key, compute)
        fits = _fits(backend, terms, first_bytes)
        if not terms.agree(replay is not None and fits):
            _logger.info("%s does not fit beside %d graphs", key, len(captured))
            del replay
            backend.release()
            break
        assert replay is not None
        captured[key] = replay
    return captured


def _fits(backend: GraphBackend, terms: GraphTerms, first_bytes: int) -> bool:
    """Return whether graphs are within their bound; what the passes before them left is not."""
    if terms.max_bytes is None:
        return True
    if backend.used_bytes() - first_bytes > terms.max_bytes:
        backend.release()
    return backend.used_bytes() - first_bytes <= terms.max_bytes


def _captured(
    backend: GraphBackend, key: Hashable, compute: Callable[[], Tensor]
) -> Callable[[], Tensor] | None:
    """Capture a pass; return None if it cannot be recorded, for want of memory or otherwise."""
    try:
        return backend.capture(compute)
    except RuntimeError as error:  # torch's errors of devices and memory are
        _logger.warning("%s cannot be captured: %s", key, error)
        return None


def _is_of_memory(error: BaseException | None) -> bool:
    """Return whether the error, or one that it came of, is want of memory."""
    return error is not None and (
        isinstance(error, torch.OutOfMemoryError) or _is_of_memory(error.__context__)
    )


class BucketedPasses:
    """Graphs of all buckets of a plan, captured when made.

    All of them write their logits into one buffer. The logits alone of 53 graphs of a model with
    128,000 ids would be 6.7 GB. The largest graph is captured first: memory that it has used serves
    the smaller ones, never the other way. The memory of one comes back with that of all. So if one
    does not fit, all begin anew without the largest.

    Args:
        backend: what captures.
        plan: the buckets wanted; those that did not fit are gone from it afterwards.
        compute: the forward pass over index tensors; it must neither look at a value nor
            allocate what outlives it.
        blocks: the keys and values of the passes; padded rows put theirs in its null block.
        table_width: blocks of the longest possible session.
        terms: what bounds the number of graphs.

    Attributes:
        kept: what there is.
    """

    def __init__(
        self,
        backend: GraphBackend,
        plan: BucketPlan,
        compute: Compute,
        blocks: KVBlocks,
        *,
        table_width: int,
        terms: GraphTerms = NO_TERMS,
    ) -> None:
        self.plan = plan
        self._blocks = blocks
        self._table_width = table_width
        device = blocks.device
        shapes = [self._shape(bucket) for bucket in plan.buckets]
        backend.release()
        first_bytes = backend.used_bytes()
        num_longs = max(shape.num_longs for shape in shapes)
        num_ints = max(shape.num_ints for shape in shapes)
        self._longs = torch.zeros(num_longs, dtype=torch.int64, device=device)
        self._ints = torch.zeros(num_ints, dtype=torch.int32, device=device)
        self._logits = torch.empty(0, device=device)
        self._graphs = self._capture(backend, compute, terms, first_bytes)
        plan.keep(self._graphs)
        backend.release()
        self.kept = GraphsKept(len(self._graphs), backend.used_bytes() - first_bytes)

    def run(
        self,
        sequences: Sequence[SequenceRows],
        bucket: Bucket,
        drawn_ids: Tensor | None = None,
    ) -> Tensor:
        """Logits [R, V] float32 of the rows of `sequences`, good until the next run.

        Args:
            sequences: a pass that fits `bucket`, which is one of the plan's.
            bucket: from `plan.choose`.
            drawn_ids: [R] the rows' ids where the host does not know them yet.
        """
        self._write(bucket, sequences)
        num_rows = sum(len(rows.token_ids) for rows in sequences)
        if drawn_ids is not None:
            self._tensors(bucket).token_ids[:num_rows].copy_(drawn_ids)
        return self._graphs[bucket]()[:num_rows].float()

    def _capture(
        self, backend: GraphBackend, compute: Compute, terms: GraphTerms, first_bytes: int
    ) -> dict[Bucket, Callable[[], Tensor]]:
        """Capture all buckets up to the largest beside which they fit."""
        wanted = list(self.plan.buckets)
        while wanted:
            most = wanted[-1].num_rows
            self._logits = self._room_for_logits(compute, most)
            calls = ((bucket, self._call(compute, bucket)) for bucket in reversed(wanted))
            captured = capture_each(backend, calls, terms, first_bytes)
            if len(captured) == len(wanted):
                break
            captured.clear()
            self._logits = self._logits.new_empty(0)
            backend.release()
            wanted = [bucket for bucket in wanted if bucket.num_rows <= most * 3 // 4]
        if len(wanted) < len(self.plan.buckets):
            most = wanted[-1].num_rows if wanted else 0
            _logger.warning("no graphs of more than %d rows: eager passes", most)
        return captured if wanted else {}

    def _room_for_logits(self, compute: Compute, num_rows: int) -> Tensor:
        """[num_rows, V] of the type that the passes give."""
        smallest = self.plan.buckets[0]
        self._write(smallest, ())  # nothing but padding, which concerns nobody
        like = compute(self._tensors(smallest), smallest.session_rows)
        return like.new_empty(num_rows, like.shape[1])

    def _call(self, compute: Compute, bucket: Bucket) -> Callable[[], Tensor]:
        """Return the passes of a bucket, ready to be captured."""
        tensors = self._tensors(bucket)
        logits = self._logits[: bucket.num_rows]
        self._write(bucket, ())
        return lambda: logits.copy_(compute(tensors, bucket.session_rows))

    def _tensors(self, bucket: Bucket) -> PassTensors:
        return PassTensors.cut(self._shape(bucket), self._longs, self._ints)

    def _shape(self, bucket: Bucket) -> PassShape:
        return PassShape(
            bucket.num_rows, bucket.num_sessions, self._table_width, bucket.session_rows
        )

    def _write(self, bucket: Bucket, sequences: Sequence[SequenceRows]) -> None:
        """Write the padded arrays of a pass into the buffers."""
        blocks = self._blocks
        arrays = index_pass(sequences, self._shape(bucket), blocks.block_size, blocks.null_block)
        for buffer, array in zip((self._longs, self._ints), arrays, strict=True):
            copy_into(buffer[: len(array)], array)
