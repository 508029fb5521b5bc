"""Measures a device's memory: the share of this process, and the temporary needs of a pass.

Other processes may use the same device. So nothing here depends on how much of it is taken, except
for the check that promised memory is there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch


class DeviceMemory(Protocol):
    """The memory of one device, in bytes."""

    @property
    def total_bytes(self) -> int:
        """All there is."""
        ...

    @property
    def free_bytes(self) -> int:
        """Bytes that no process holds."""
        ...

    @property
    def own_bytes(self) -> int:
        """Bytes that this process holds for tensors."""
        ...

    def peak_of(self, run: Callable[[], object]) -> int:
        """Return the peak memory of `run` beside what is held before it."""
        ...


class CudaMemory:
    """Implements `DeviceMemory` by torch's own counts."""

    def __init__(self, device: torch.device) -> None:
        self._device = device

    @property
    def total_bytes(self) -> int:
        """See `DeviceMemory`."""
        return torch.cuda.mem_get_info(self._device)[1]

    @property
    def free_bytes(self) -> int:
        """See `DeviceMemory`; what torch keeps in reserve is given back first."""
        torch.cuda.empty_cache()
        return torch.cuda.mem_get_info(self._device)[0]

    @property
    def own_bytes(self) -> int:
        """See `DeviceMemory`."""
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved(self._device)

    def peak_of(self, run: Callable[[], object]) -> int:
        """See `DeviceMemory`."""
        torch.cuda.synchronize(self._device)
        torch.cuda.reset_peak_memory_stats(self._device)
        before = torch.cuda.memory_allocated(self._device)
        run()
        torch.cuda.synchronize(self._device)
        return torch.cuda.max_memory_allocated(self._device) - before
