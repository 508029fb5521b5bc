"""The threads of another process of this machine, as Linux counts them: proc(5)."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

STOPPED = "T"  # by a signal
HELD = (STOPPED, "t")  # by a signal, or by a debugger
RUNNING = "R"  # or it waits for a core
_NOT_STILL = frozenset({RUNNING, "D", "t"})  # it waits for a disk or a page; a debugger has it
_HARDLY_ANY = 0.05  # of one core: Ray's own threads wake a few times a second


class Thread(NamedTuple):
    """One thread: its state's letter and the CPU seconds that it has had."""

    state: str
    cpu_s: float


def first_thread(pid: int | None) -> Thread | None:
    """Return a process's first thread; None where it cannot be known."""
    return _read(Path(f"/proc/{pid}/task/{pid}"))


def threads_of(pid: int) -> Sequence[Thread]:
    """Return all threads of a process; empty where they cannot be known."""
    try:
        folders = list(Path(f"/proc/{pid}/task").iterdir())
    except OSError:
        return ()
    return [thread for folder in folders if (thread := _read(folder)) is not None]


def are_stopped(threads: Sequence[Thread]) -> bool:
    """Return whether a signal has stopped all of a process's threads, if there are any."""
    return bool(threads) and all(thread.state == STOPPED for thread in threads)


class StillWatch:
    """Tells a process that is stopped or stuck from one that waits for a core.

    It is for a process that owes a sign of life. It is still where no thread of it runs, waits for
    a core or waits for a disk.

    Args:
        look: returns its threads; none where they cannot be known.
        clock: seconds, monotonic.
    """

    def __init__(
        self, look: Callable[[], Sequence[Thread]], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._look, self._clock = look, clock
        self._num_looks, self._cpu_s, self._at_s = 0, -math.inf, 0.0

    def look(self) -> int:
        """Look once more, and return how many looks in a row found it still.

        The first look only begins. Looks are counted, not seconds, because this process itself may
        be held up between two of them.
        """
        threads, now_s = self._look(), self._clock()
        cpu_s = sum(thread.cpu_s for thread in threads)
        took_s, passed_s = cpu_s - self._cpu_s, now_s - self._at_s
        wants = any(thread.state in _NOT_STILL for thread in threads)
        is_still = bool(threads) and not wants and took_s <= _HARDLY_ANY * passed_s
        self._num_looks = self._num_looks + 1 if is_still else 0
        self._cpu_s, self._at_s = cpu_s, now_s
        return self._num_looks


def _read(folder: Path) -> Thread | None:
    try:
        fields = (folder / "stat").read_bytes().rpartition(b")")[2].split()
    except OSError:
        return None
    ticks = int(fields[11]) + int(fields[12])  # utime and stime
    return Thread(fields[0].decode(), ticks / os.sysconf("SC_CLK_TCK"))
