"""Ends processes of Serve's own on this node that a signal has stopped: its proxy, its controller.

Serve finds a stopped proxy by three checks that end late, and nobody looks for a stopped
controller. Ray replaces either within seconds once it is dead.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from deployments.serve.threads import are_stopped, threads_of

_TITLES = (b"ray::ProxyActor", b"ray::ServeController")
_LOOK_S = 0.5


def end_stopped_forever(parent: int) -> None:
    """End Serve's processes that two looks in a row find stopped.

    Args:
        parent: the process that has started them and this replica: the node's raylet.
    """
    before: set[int] = set()
    while True:
        stopped = {pid for pid in serves_own(parent) if are_stopped(threads_of(pid))}
        for pid in stopped & before:
            sys.stderr.write(f"watchdog: pid {pid}, of Serve's own, is stopped and is ended\n")
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        before = stopped
        time.sleep(_LOOK_S)


def serves_own(parent: int) -> Iterator[int]:
    """Yield the children of a process that have a title of Serve's own processes."""
    for pid in _children(parent):
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(_TITLES):
                yield pid


def _children(parent: int) -> Iterator[int]:
    """Yield the children that any thread of a process has started; none where it cannot be told."""
    for listing in Path(f"/proc/{parent}/task").glob("*/children"):
        with suppress(OSError):  # the thread has ended
            yield from map(int, listing.read_bytes().split())
