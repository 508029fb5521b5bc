"""Watches the memory of a constraint child, and frees parts of it before the limit.

A child that reaches its limit is ended by the allocator, with every matcher in it. So it frees the
parts that can be made again long before. First go compiled grammars that no session uses, then
grammars with their sessions. Their routers open and replay them on a fresh lexer. It compiles
nothing new if neither makes enough room. Marks are shares of the memory between the tokenizer's and
the limit.

Resident memory counts: freed memory is handed back to the system first (glibc keeps it else). If
/proc is missing, nothing is measured and only the limit itself remains.
"""

from __future__ import annotations

import contextlib
import ctypes
import resource
import sys
import time
from collections.abc import Callable
from typing import Protocol

_PAGE = resource.getpagesize()
_RESIDENT, _DATA = 1, 5  # fields of /proc/self/statm
_CACHE_MARK = 0.5  # above it, grammars that nobody uses go
_SESSION_MARK = 0.75  # above it, sessions go too; room for a compile ends here
_PERIOD_S = 0.25  # between looks; nothing grows by much in that time
_MAX_ROUNDS = 8  # rounds of giving up, in one look


class Holder(Protocol):
    """The part of a grammar host that can give memory back."""

    def evict(self) -> int:
        """Drop grammars that no session uses; how many."""
        ...

    def forget(self) -> int:
        """Drop one grammar with its sessions; how many sessions."""
        ...


def resident_bytes() -> int:
    """Memory of this process that is in use; 0 where that cannot be known."""
    return _statm(_RESIDENT)


def data_bytes() -> int:
    """Return the bytes that count against RLIMIT_DATA; 0 if they cannot be known."""
    return _statm(_DATA)


def limit_memory(num_bytes: int) -> None:
    """End this process when it takes more; without effect where the system has no such limit."""
    # Anonymous memory, not address space: reserved but unused ranges would count there.
    kind = resource.RLIMIT_DATA if sys.platform == "linux" else resource.RLIMIT_AS
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (num_bytes, num_bytes))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


class MemoryGuard:
    """Keeps a child with sessions below its limit.

    Args:
        holder: what gives memory back.
        limit_bytes: at which the child would end.
        compile_bytes: what one compile may take.
        measure: bytes in use now.
        clock: seconds.
    """

    def __init__(
        self,
        holder: Holder,
        limit_bytes: int,
        compile_bytes: int,
        measure: Callable[[], int] = resident_bytes,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        base = measure()
        room = max(limit_bytes - base, 0)
        self._holder = holder
        self._compile_bytes = compile_bytes
        self._limit_bytes = limit_bytes
        self._cache_mark = base + int(_CACHE_MARK * room)
        self._session_mark = base + int(_SESSION_MARK * room)
        self._measure = measure
        self._clock = clock
        self._looked_at = clock()

    def look(self) -> None:
        """Give up what has to go. Cheap: measures a few times a second at most."""
        now = self._clock()
        if now - self._looked_at < _PERIOD_S:
            return
        self._looked_at = now
        self._free(self._cache_mark, self._holder.evict)
        self._free(self._session_mark, self._holder.forget)

    def refusal(self) -> str:
        """Why no grammar can be compiled now; "" when one can."""
        mark = max(self._session_mark - self._compile_bytes, self._cache_mark)
        self._free(self._cache_mark, self._holder.evict)
        in_use = self._measure()
        if in_use <= mark:
            return ""
        return (
            f"open grammars take {in_use >> 20} MB of this process, too much to compile another "
            f"within {self._limit_bytes >> 20} MB (memory_limit_mb)"
        )

    def _free(self, mark: int, give_up: Callable[[], int]) -> None:
        for _ in range(_MAX_ROUNDS):
            if self._measure() <= mark or not give_up():
                return
            _hand_back()


def _statm(field: int) -> int:
    try:
        with open("/proc/self/statm", "rb") as file:
            return int(file.read().split()[field]) * _PAGE
    except OSError:
        return 0


def _hand_back() -> None:
    """Give freed memory back to the system, where the C library can."""
    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).malloc_trim(0)
