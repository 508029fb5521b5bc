"""Weights that a rank and its spare read in one place of memory, on a CPU.

The first process puts each weight that it lays out into memory without a name (memfd). A spare lays
out the same weights in the same order. It finds each of them there and lets its own go. The system
frees the memory with the last process that maps it. So no death leaves anything behind.

All bytes are compared. A spare of a checkpoint that has changed is refused: it could not go on with
the texts.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

_CHUNK_BYTES = 1 << 30  # mapped at once; pages that nothing was written to take no memory
_ALIGNMENT = 64  # a cache line, as torch's own memory


class SharedWeights:
    """The place, as one process sees it.

    Args:
        source: `path` in a process that has laid out the same model; "": this one is the first.

    Raises:
        OSError: there is no such process, or it is another user's.
    """

    def __init__(self, source: str = "") -> None:
        self._is_first = not source
        self._file = os.open(source, os.O_RDWR) if source else os.memfd_create("outrider-weights")
        self._chunk: mmap.mmap | None = None
        self._chunks_end = 0  # bytes of all chunks
        self._used = 0  # bytes of the newest chunk
        self.num_bytes = 0  # of all weights here

    @property
    def path(self) -> str:
        """The path under which other processes of this user on this node can open it."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def keep(self, weight: Tensor) -> Tensor:
        """Return the weight as it lies in this memory.

        Raises:
            ValueError: the first process has another one there, or none.
        """
        if weight.nbytes == 0:
            return weight
        place = self._place(weight)
        if self._is_first:
            place.copy_(weight)
        elif not torch.equal(place.view(torch.uint8), weight.contiguous().view(torch.uint8)):
            raise ValueError(
                f"a weight of shape {tuple(weight.shape)} is not the serving model's: the "
                "checkpoint has changed since that was loaded"
            )
        self.num_bytes += weight.nbytes
        return place

    def _place(self, weight: Tensor) -> Tensor:
        """Return memory for a tensor of this shape, behind the last one."""
        start = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if self._chunk is None or start + weight.nbytes > len(self._chunk):
            self._chunk, start = self._next_chunk(weight.nbytes), 0
        self._used = start + weight.nbytes
        numbers = torch.frombuffer(
            self._chunk, dtype=weight.dtype, count=weight.numel(), offset=start
        )
        return numbers.view(weight.shape)

    def _next_chunk(self, num_bytes: int) -> mmap.mmap:
        length = max(_CHUNK_BYTES, -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        begin, self._chunks_end = self._chunks_end, self._chunks_end + length
        if self._is_first:
            os.ftruncate(self._file, self._chunks_end)
        elif os.fstat(self._file).st_size < self._chunks_end:
            raise ValueError("the model has more weights than the serving one")
        return mmap.mmap(self._file, length, offset=begin)


_memory: SharedWeights | None = None  # of the model that is being laid out; None: torch's own


def kept(weight: Tensor) -> Tensor:
    """Return a weight that was just laid out, where this process keeps its weights."""
    return weight if _memory is None else _memory.keep(weight)


@contextmanager
def weights_in(memory: SharedWeights | None) -> Iterator[None]:
    """Keep the weights of the model that is loaded within in this memory; None: in torch's own."""
    global _memory
    before, _memory = _memory, memory
    try:
        yield
    finally:
        _memory = before
