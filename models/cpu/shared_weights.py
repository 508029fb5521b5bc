"""Weights that processes of one machine read in one place of memory, on a CPU.

The first process that loads a model puts each weight that it lays out into memory without a file
(memfd). Another that loads the same model lays out the same weights in the same order. It finds
each of them there and lets its own go. It finds the memory by its label, among those that processes
of its user have open. The system frees the memory with the last of them. So no death leaves
anything behind.

Memory is found once it is whole: its size is sealed then. All bytes are compared. From the first
weight that is another one, of a checkpoint that has changed, a process has its own.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import torch
from torch import Tensor

from models.cpu.weight_memory import WeightMemory, in_large_pages

CAN_SHARE = hasattr(os, "memfd_create")  # Linux
_CHUNK_BYTES = 1 << 30  # mapped at once; pages that nothing was written to take no memory


class SharedWeights(WeightMemory):
    """The place, as one process sees it.

    Args:
        name: of the model and the way it is laid out; processes that name the same share it.

    Attributes:
        is_first: it found no other process that has them.
    """

    def __init__(self, name: str) -> None:
        super().__init__()
        label = f"outrider-weights-{name}"
        found = _whole_memory(label)
        self.is_first = found is None
        flags = os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING
        self._file = os.memfd_create(label, flags) if found is None else found
        self._chunks_end = 0  # bytes of all chunks
        self._own: WeightMemory | None = None  # of a process whose weights are others

    def keep(self, weight: Tensor) -> Tensor:
        """See `WeightMemory.keep`."""
        if self._own is None:
            try:
                return super().keep(weight)
            except _OtherWeights:
                self._own = WeightMemory()
                self._chunk = None  # the last weight that holds it frees it
                os.close(self._file)
        self.num_bytes += weight.nbytes
        return self._own.keep(weight)

    def finish(self) -> None:
        """Let other processes find the weights: they are whole."""
        if self.is_first:
            fcntl.fcntl(self._file, fcntl.F_ADD_SEALS, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SHRINK)

    def _fill(self, place: Tensor, weight: Tensor) -> None:
        if self.is_first:
            place.copy_(weight)
        elif not torch.equal(place.view(torch.uint8), weight.contiguous().view(torch.uint8)):
            raise _OtherWeights

    def _next_chunk(self, num_bytes: int) -> tuple[mmap.mmap, int]:
        length = max(_CHUNK_BYTES, -(-num_bytes // mmap.PAGESIZE) * mmap.PAGESIZE)
        begin, self._chunks_end = self._chunks_end, self._chunks_end + length
        if self.is_first:
            os.ftruncate(self._file, self._chunks_end)
        elif os.fstat(self._file).st_size < self._chunks_end:
            raise _OtherWeights
        chunk = mmap.mmap(self._file, length, offset=begin)
        in_large_pages(chunk)  # granted where Linux's `shmem_enabled` is `advise`
        return chunk, 0


class _OtherWeights(Exception):
    """The first process has another weight there, or none."""


def _whole_memory(label: str) -> int | None:
    """Open the memory of this label that a process of this user has, if it is whole."""
    for link in _open_files():
        with suppress(OSError):  # it is gone by now
            if os.readlink(link).startswith(f"/memfd:{label} "):
                file = os.open(link, os.O_RDWR)
                is_whole = fcntl.fcntl(file, fcntl.F_GET_SEALS) & fcntl.F_SEAL_GROW
                if is_whole and os.fstat(file).st_uid == os.getuid():  # root sees others' too
                    return file
                os.close(file)
    return None


def _open_files() -> Iterator[Path]:
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with suppress(OSError):  # another user's, or gone by now
            yield from folder.iterdir()
