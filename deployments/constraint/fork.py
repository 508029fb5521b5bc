"""Work that may be hostile: done in a fork of this process, which the system ends at its limits.

A fork has the loaded objects of this process and nothing of any other work. It cannot change this
process or another fork. The system measures its cost and ends it when it has used its CPU time
(SIGPROF) or its memory (RLIMIT_DATA). CPU time does not pass while other processes have the core.
So a busy machine makes no work too costly, only late. The processes that it has started itself end
with it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

from deployments.constraint.memory import data_bytes, limit_memory
from deployments.constraint.pipe import OUT_OF_MEMORY_EXIT

_MAX_RESULT_BYTES = 1 << 16  # bytes that a pipe takes without a reader
_ENDED_ITSELF = frozenset({signal.SIGABRT, signal.SIGSEGV, signal.SIGBUS})


@dataclass(frozen=True)
class ForkLimits:
    """Limits of one piece of work."""

    cpu_s: float
    memory_mb: int  # beside what this process has
    timeout_s: float  # wall-clock


@dataclass(frozen=True)
class ForkEnd:
    """The end of a piece of work.

    `result`: what it returned, b"" when it was ended or failed. `status`: exit status, or minus the
    signal. `is_late`: it was ended for its wall-clock time.
    """

    result: bytes
    status: int
    cpu_s: float
    is_late: bool

    @property
    def has_crashed(self) -> bool:
        """True if it ended its process by a fault of its own, other than for want of memory."""
        return -self.status in _ENDED_ITSELF - {signal.SIGABRT} or self.status == 1

    @property
    def is_costly(self) -> bool:
        """True if it took too much or ended its process, unless it is late."""
        ended = self.status == -signal.SIGPROF or -self.status in _ENDED_ITSELF or self.status > 0
        return not self.result and not self.is_late and ended

    @property
    def used_up_cpu(self) -> bool:
        """True if it was ended for its CPU time."""
        return self.status == -signal.SIGPROF


class Fork:
    """One piece of work, from its start; `end` must be called once.

    Args:
        work: returns at most `_MAX_RESULT_BYTES`. Runs in the fork.
        limits: of it.

    Raises:
        OSError: there is no process to be had now.
    """

    def __init__(self, work: Callable[[], bytes], limits: ForkLimits) -> None:
        self._results, writing = os.pipe()
        try:
            self._pid = os.fork()
        except OSError:
            os.close(self._results)
            os.close(writing)
            raise
        if not self._pid:
            _run(work, limits, writing)
        os.close(writing)
        self.late_at = time.monotonic() + limits.timeout_s

    def fileno(self) -> int:
        """Readable when the work has ended, however."""
        return self._results

    def end(self, *, is_late: bool = False) -> ForkEnd:
        """Take the result, if there is one, and end the process with all that it started."""
        result = b"" if is_late else os.read(self._results, _MAX_RESULT_BYTES)
        os.close(self._results)
        # Not reaped yet, so the id is its own; one that has ended keeps the status it ended with.
        os.kill(self._pid, signal.SIGKILL)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._pid, signal.SIGKILL)
        _, status, usage = os.wait4(self._pid, 0)
        cpu_s = usage.ru_utime + usage.ru_stime
        return ForkEnd(result, os.waitstatus_to_exitcode(status), cpu_s, is_late)


def _run(work: Callable[[], bytes], limits: ForkLimits, writing: int) -> None:
    """Work, write the result and end the process, which is the fork. Never returns."""
    status = 1
    try:
        os.setpgid(0, 0)
        silence = os.open(os.devnull, os.O_WRONLY)
        os.dup2(silence, 1)
        os.dup2(silence, 2)  # the allocator's last words; the parent says it better
        signal.setitimer(signal.ITIMER_REAL, 2 * limits.timeout_s)  # for an orphan
        signal.setitimer(signal.ITIMER_PROF, limits.cpu_s)
        used = data_bytes()
        if used:
            limit_memory(used + (limits.memory_mb << 20))
        result = work()
        assert len(result) <= _MAX_RESULT_BYTES, f"a result of {len(result)} bytes"
        os.write(writing, result)
        status = 0
    except MemoryError:
        status = OUT_OF_MEMORY_EXIT
    finally:
        os._exit(status)
