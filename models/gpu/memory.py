"""What a device's memory holds: the part of this process, and what a pass needs for a while.

Other processes may use the same device, so nothing here is concluded from how much of it is taken
by whomever, except whether what was promised is there.
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
        """What nobody holds."""
        ...

    @property
    def own_bytes(self) -> int:
        """What this process holds for tensors."""
        ...

    def peak_of(self, run: Callable[[], object]) -> int:
        """The most that `run` holds at a time beside what is held before it."""
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
