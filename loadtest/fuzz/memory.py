"""Checks that the fuzzer's own process, which runs everything under test, does not keep growing.

The first half of a part's samples is warm-up: caches fill, kernels compile, the allocator takes its
reserve. Growth is the median of the last quarter less that of the one before. So a leak of a fixed
amount per case shows in proportion to the cases between. A part fails if it grows by more than
`MAX_GROWTH_MIB`. Runs of fewer than `_LEAST_SAMPLES` cases say nothing of memory.
"""

from __future__ import annotations

import math
import time
from statistics import median

import psutil

MAX_GROWTH_MIB = 48.0  # between two quarters of a part; the allocator's own noise is some MiB
_LEAST_SAMPLES = 60
_LEAST_INTERVAL_S = 0.2  # the processes are walked for each sample, which takes milliseconds
_MIB = 1 << 20


class MemoryLog:
    """RSS of this process and its children after cases, MiB."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self.samples: list[float] = []
        self._sampled_s = -math.inf

    def sample(self) -> None:
        """Read it now, unless that was done just before."""
        if time.monotonic() - self._sampled_s < _LEAST_INTERVAL_S:
            return
        self._sampled_s = time.monotonic()
        total = self._process.memory_info().rss
        for child in self._process.children(recursive=True):
            try:
                total += child.memory_info().rss
            except psutil.Error:
                continue  # it has ended just now
        self.samples.append(total / _MIB)

    @property
    def growth_mib(self) -> float | None:
        """Growth from the third quarter to the last; None if there are too few samples."""
        quarter = len(self.samples) // 4
        if len(self.samples) < _LEAST_SAMPLES:
            return None
        last, before = self.samples[-quarter:], self.samples[-2 * quarter : -quarter]
        return median(last) - median(before)

    @property
    def complaint(self) -> str:
        """The complaint about the growth, or ""."""
        growth = self.growth_mib
        if growth is None or growth <= MAX_GROWTH_MIB:
            return ""
        return f"memory grew by {growth:.0f} MiB after the warm-up, the limit is {MAX_GROWTH_MIB:g}"
