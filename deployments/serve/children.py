"""Starts processes that a replica keeps beside it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence


def start_child(
    module: str, *words: str, stdin: int = subprocess.DEVNULL, fds: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start a module as a child that inherits `fds` and finds the same packages."""
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(path or os.getcwd() for path in sys.path),
        "MALLOC_ARENA_MAX": "2",
    }
    return subprocess.Popen(
        [sys.executable, "-m", module, *words], pass_fds=fds, env=environment, stdin=stdin
    )
