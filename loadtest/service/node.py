"""A Ray node of its own process group, started by `ray start` and without a fork of this process.

Ray's own ways to start a node from Python (`ray.init`, its `Cluster`) run a function in the child,
so Python forks. gRPC's threads, which a process has that was connected to a Ray before, may end
such a child: the node is waited for and never comes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

_START_TIMEOUT_S = 90.0
_END_TIMEOUT_S = 30.0
_STARTED = "Ray runtime started."
_OBJECT_STORE_BYTES = 100 * 1024 * 1024
_COMMON = {
    "node-ip-address": "127.0.0.1",
    "object-store-memory": _OBJECT_STORE_BYTES,
    "min-worker-port": 0,  # the range by default is one for all nodes of the machine
    "max-worker-port": 0,
    "disable-usage-stats": None,
    "block": None,
}


class RayNode:
    """A node that has started; use `close`.

    Args:
        options: further options of `ray start` by name; those without a value are None.
        log_path: receives what it prints.

    Raises:
        RuntimeError: it ended, or had not started after `_START_TIMEOUT_S`; with its output's end.
    """

    def __init__(self, options: Mapping[str, object], log_path: Path) -> None:
        words = [
            f"--{name}" if value is None else f"--{name}={value}"
            for name, value in {**_COMMON, **options}.items()
        ]
        self._log_path = log_path
        with log_path.open("wb") as log:
            self._process = subprocess.Popen(
                [str(Path(sys.executable).with_name("ray")), "start", *words],
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            self._wait_started()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Kill the node and all that runs on it, as a machine that loses its power."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait(_END_TIMEOUT_S)

    def _wait_started(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while _STARTED not in (said := self._log_path.read_text(errors="replace")):
            if self._process.poll() is not None:
                raise RuntimeError(f"ray start ended:\n{said[-4000:]}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"no node after {_START_TIMEOUT_S:g} s:\n{said[-4000:]}")
            time.sleep(0.1)
