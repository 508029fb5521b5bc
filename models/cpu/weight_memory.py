"""Memory for the weights of one model, in the order in which they are laid out for a CPU.

A pass reads all weights once. In pages of 4 KB that takes many address translations, so the system
is asked for pages of 2 MB. Small weights lie close together for that. A piece of memory is freed
with the last weight in it.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

HUGE_BYTES = 2 << 20  # a large page of x86-64 and of most ARM systems
_CHUNK_BYTES = 64 << 20  # asked for at once; what nothing was written to takes no memory
_ALIGNMENT = 64  # a cache line, as torch's own memory


class WeightMemory:
    """Pieces of memory that are filled with weights one after the other.

    Attributes:
        num_bytes: of all weights in it.
    """

    def __init__(self) -> None:
        self._chunk: mmap.mmap | None = None
        self._used = 0  # bytes of the newest chunk
        self.num_bytes = 0

    def keep(self, weight: Tensor) -> Tensor:
        """Return the weight as it lies in this memory."""
        if weight.nbytes == 0:
            return weight
        place = self._place(weight)
        self._fill(place, weight)
        self.num_bytes += weight.nbytes
        return place

    def _fill(self, place: Tensor, weight: Tensor) -> None:
        place.copy_(weight)

    def _place(self, weight: Tensor) -> Tensor:
        """Return memory for a tensor of this shape, behind the last one."""
        start = -(-self._used // _ALIGNMENT) * _ALIGNMENT
        if self._chunk is None or start + weight.nbytes > len(self._chunk):
            self._chunk, start = self._next_chunk(weight.nbytes)
        self._used = start + weight.nbytes
        numbers = torch.frombuffer(
            self._chunk, dtype=weight.dtype, count=weight.numel(), offset=start
        )
        return numbers.view(weight.shape)

    def _next_chunk(self, num_bytes: int) -> tuple[mmap.mmap, int]:
        """Return a new piece with room for so many bytes, and where it begins to be used."""
        length = max(_CHUNK_BYTES, num_bytes) + HUGE_BYTES
        chunk = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        in_large_pages(chunk)
        address = torch.frombuffer(chunk, dtype=torch.uint8, count=1).data_ptr()
        return chunk, -address % HUGE_BYTES


def in_large_pages(chunk: mmap.mmap) -> None:
    """Ask for large pages; a system that has none, or grants none, leaves it at small ones."""
    with contextlib.suppress(AttributeError, OSError):
        chunk.madvise(mmap.MADV_HUGEPAGE)


_memory: WeightMemory | None = None  # of the model that is being laid out; None: torch's own


def kept(weight: Tensor) -> Tensor:
    """Return a weight that was just laid out, where this process keeps its weights."""
    return weight if _memory is None else _memory.keep(weight)


@contextmanager
def weights_in(memory: WeightMemory) -> Iterator[None]:
    """Keep the weights of the model that is loaded within in this memory."""
    global _memory
    before, _memory = _memory, memory
    try:
        yield
    finally:
        _memory = before


@contextmanager
def weights_together() -> Iterator[None]:
    """Keep the weights of the model that is loaded within in one memory, if none was chosen."""
    with weights_in(WeightMemory() if _memory is None else _memory):
        yield
