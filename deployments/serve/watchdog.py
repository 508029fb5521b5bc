"""A small child that ends its parent if that stands still: stopped, or stuck with Python's lock.

Serve finds that by three health checks in a row, and takes 13 s. A busy replica may be late for
those, so they cannot be shorter. When a beat of the parent is late, the child looks at its threads
(`threads`). It asks if all are stopped, or none runs or waits for a core. An event loop that waits
for long still beats, because another thread does that.

It has a process of its own because a process that is stopped cannot look. It takes 13 MB.
"""

from __future__ import annotations

import logging
import os
import select
import signal
import subprocess
import sys
import threading
import time
from functools import partial

from deployments.serve.children import start_child
from deployments.serve.siblings import end_stopped_forever
from deployments.serve.threads import RUNNING, StillWatch, are_stopped, threads_of

logger = logging.getLogger("ray.serve")

_LOOK_S = 0.2  # between looks, once a beat is late
_STILL_LOOKS = 3  # in a row that find it still: 0.8 s with the first, which only begins
_BEAT_S = _LOOK_S / 2
_READ_BYTES = 4096


def start_watchdog(*, of_serve: bool = False) -> int:
    """Have this process watched until it ends; return the number of the child.

    With `of_serve` the child looks after Serve's own processes of this node as well.
    """
    parents = [str(os.getppid())] if of_serve else []
    child = start_child(__name__, str(os.getpid()), *parents, stdin=subprocess.PIPE)
    threading.Thread(target=_beat, args=(child,), name="watchdog", daemon=True).start()
    return child.pid


def _beat(child: subprocess.Popen[bytes]) -> None:
    assert child.stdin is not None
    while True:
        try:
            os.write(child.stdin.fileno(), b".")
        except OSError:
            logger.warning("watchdog: it has ended, and nobody watches this process any more")
            return
        time.sleep(_BEAT_S)


def stands_still(pid: int, beats: int) -> bool:
    """Wait until a process stands still (True), or the other end of its `beats` is closed."""
    watch = StillWatch(partial(threads_of, pid))
    while True:
        if select.select([beats], [], [], _LOOK_S)[0]:
            if not os.read(beats, _READ_BYTES):
                return False
            watch = StillWatch(partial(threads_of, pid))
        elif watch.look() >= _STILL_LOOKS or are_stopped(threads_of(pid)):
            return True


def _main(pid: int, *parents: int) -> None:
    if all(thread.state != RUNNING for thread in threads_of(os.getpid())):
        return  # this system does not tell who runs: this process does
    for parent in parents:
        threading.Thread(target=end_stopped_forever, args=(parent,), daemon=True).start()
    if stands_still(pid, sys.stdin.fileno()) and os.getppid() == pid:
        said = "is ended: it neither runs nor waits for a core, so it is stopped or stuck"
        sys.stderr.write(f"watchdog: pid {pid} {said}\n")
        os.kill(pid, signal.SIGKILL)


if __name__ == "__main__":
    _main(*map(int, sys.argv[1:]))
