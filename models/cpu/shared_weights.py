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

import torch
from torch import Tensor

from models.cpu.weight_memory import WeightMemory, in_large_pages

_CHUNK_BYTES = 1 << 30  # mapped at once; pages that nothing was written to take no memory


class SharedWeights(WeightMemory):
    """The place, as one process sees it.

    Args:
        source: `path` in a process that has laid out the same model; "": this one is the first.

    Raises:
        OSError: there is no such process, or it is another user's.
    """

    def __init__(self, source: str = "") -> None:
        super().__init__()
        self._is_first = not source
        self._file = os.open(source, os.O_RDWR) if source else os.memfd_create("outrider-weights")
        self._chunks_end = 0  # bytes of all chunks

    @property
    def path(self) -> str:
        """The path under which other processes of this user on this node can open it."""
        return f"/proc/{os.getpid()}/fd/{self._file}"

    def _fill(self, place: Tensor, weight: Tensor) -> None:
        """See `WeightMemory`.

        Raises:
            ValueError: the first process has another weight there.
        """
        if self._is_first:
            place.copy_(weight)
        elif not torch.equal(place.view(torch.uint8), weight.contiguous().view(torch.uint8)):
            raise ValueError(
                f"a weight of shape {tuple(weight.shape)} is not the serving model's: the "
                "checkpoint has changed since that was loaded"
            )

    def _next_chunk(self, num_bytes: int) -> tuple[mmap.mmap, int]:
        """See `WeightMemory`.

        Raises:
            ValueError: the first process has no more.
        """
        length = max(_CHUNK_BYTES, -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        begin, self._chunks_end = self._chunks_end, self._chunks_end + length
        if self._is_first:
            os.ftruncate(self._file, self._chunks_end)
        elif os.fstat(self._file).st_size < self._chunks_end:
            raise ValueError("the model has more weights than the serving one")
        chunk = mmap.mmap(self._file, length, offset=begin)
        in_large_pages(chunk)  # granted where Linux's `shmem_enabled` is `advise`
        return chunk, 0
