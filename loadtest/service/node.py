"""A Ray node in a session of its own, started by `ray start` without a fork of this process.

`ray.init` and Ray's `Cluster` run a function in each process that they start. So Python forks. A
process that was connected to a Ray before has threads of gRPC, which may end such a child. The node
is then waited for and never comes.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from loadtest.service.sessions import kill_session

_START_TIMEOUT_S = 90.0
_END_TIMEOUT_S = 30.0
_STARTED = "Ray runtime started."
_OBJECT_STORE_BYTES = 100 * 1024 * 1024
# It ends with this process, however that ends. In order: agents of a node that was killed would
# try for a minute to tell the GCS so, which is gone as well. No actor is waited for then.
_APART = ("setpriv", "--pdeathsig", "TERM")
_AT_ONCE = {"RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S": "0"}
_COMMON = {
    "object-store-memory": _OBJECT_STORE_BYTES,
    "min-worker-port": 0,  # the range by default is one for all nodes of the machine
    "max-worker-port": 0,
    "include-log-monitor": False,
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
                [*_APART, str(Path(sys.executable).with_name("ray")), "start", *words],
                env={**os.environ, **_AT_ONCE, "PYTHONUNBUFFERED": "1"},
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
        """Kill the node and all that runs on it, as a machine that loses its power.

        Raises:
            TimeoutError: something of it still lives after `_END_TIMEOUT_S`.
        """
        kill_session(self._process, _END_TIMEOUT_S)

    def _wait_started(self) -> None:
        deadline = time.monotonic() + _START_TIMEOUT_S
        while _STARTED not in (said := self._log_path.read_text(errors="replace")):
            if self._process.poll() is not None:
                raise RuntimeError(f"ray start ended:\n{said[-4000:]}")
            if time.monotonic() > deadline:
                raise RuntimeError(f"no node after {_START_TIMEOUT_S:g} s:\n{said[-4000:]}")
            time.sleep(0.1)
