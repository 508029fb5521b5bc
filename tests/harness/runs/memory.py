"""Memory of a process that runs tests, and when what is left of them is collected."""

from __future__ import annotations

import ctypes
import gc
import os
from pathlib import Path

GROWTH_BYTES = 2**27  # since the last collection


class ResidentMemory:
    """Measures the process' resident memory, and collects what tests leave of it."""

    def __init__(self) -> None:
        self._collected_bytes = self._resident_bytes()

    @staticmethod
    def _resident_bytes() -> int:
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")

    def after_a_test(self, most_bytes: int) -> int:
        """Return the bytes held; where they grew or are too many, cycles are collected first.

        Python counts objects, not bytes: services that ended are in few, large ones.
        """
        held_bytes = self._resident_bytes()
        if held_bytes > min(self._collected_bytes + GROWTH_BYTES, most_bytes):
            gc.collect()
            ctypes.CDLL(None).malloc_trim(0)
            self._collected_bytes = held_bytes = self._resident_bytes()
        return held_bytes


resident_memory = ResidentMemory()
