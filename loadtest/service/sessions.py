"""Sessions of processes: a process started with `start_new_session`, and all that it started.

A group of processes is not enough. Ray gives each worker a group of its own, in the same session.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psutil


def let_others_go_first(pid: int) -> None:
    """Let processes of other sessions have a core first; nothing happens where none are grouped.

    Ray's processes are nice, but only to those of their own session if Linux shares cores among
    sessions. A client beside a busy service waited for a core for up to 2.8 s.
    """
    with contextlib.suppress(OSError):
        Path(f"/proc/{pid}/autogroup").write_text("19", encoding="utf-8")


def kill_session(leader: subprocess.Popen[bytes], limit_s: float) -> None:
    """Kill all that lives in the session of its first process, and wait until it is gone.

    Raises:
        TimeoutError: something still lives after `limit_s`.
    """
    deadline = time.monotonic() + limit_s
    while living := list(_living(leader.pid)):
        if time.monotonic() > deadline:
            raise TimeoutError(f"{len(living)} processes live {limit_s:g} s on: {living[0]}")
        for process in living:
            with contextlib.suppress(psutil.Error):
                process.kill()
        time.sleep(0.02)
    leader.wait(limit_s)


def _living(session: int) -> Iterator[psutil.Process]:
    for process in psutil.process_iter():
        with contextlib.suppress(OSError, psutil.Error):
            is_of_it = os.getsid(process.pid) == session
            if is_of_it and process.status() != psutil.STATUS_ZOMBIE:
                yield process
