"""Runs other people's programs for a bounded time: whatever they start ends with them."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_END_TIMEOUT_S = 10.0


class NotHere(Exception):
    """A program that a client needs is not on this machine."""


def path_of(program: str) -> str:
    """Return where a program is.

    Raises:
        NotHere: it is not installed.
    """
    # Servers are often beside the programs of all users.
    found = shutil.which(program) or shutil.which(program, path="/usr/sbin:/usr/local/sbin")
    if found is None:
        raise NotHere(f"skipped: {program} is not installed")
    return found


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a program. `status` is None if it ran out of time and was killed."""

    status: int | None
    output: str
    errors: str

    def why(self, timeout_s: float) -> str:
        """Why its end is not a good one; empty: it is."""
        if self.status is None:
            return f"ended after the time limit of {timeout_s:g} s"
        if self.status == 0:
            return ""
        lines = [line for line in (self.errors or self.output).splitlines() if line.strip()]
        errors = [line for line in lines if "error" in line.lower()]
        return f"exit status {self.status}: {(errors or lines or ['no output'])[-1].strip()}"


def run_bounded(
    command: Sequence[str], *, environment: Mapping[str, str], folder: Path, timeout_s: float
) -> Ended:
    """Run a program in `folder`, in a process group of its own, which is gone when this returns.

    Raises:
        OSError: it cannot be started.
    """
    output_path, errors_path = folder / "stdout.txt", folder / "stderr.txt"
    with output_path.open("wb") as output, errors_path.open("wb") as errors:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=errors,
            start_new_session=True,
        )
    status: int | None = None
    try:
        with contextlib.suppress(subprocess.TimeoutExpired):
            status = process.wait(timeout_s)
    finally:
        # The processes that it started may outlive it; the group ends with its last process.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(_END_TIMEOUT_S)
    return Ended(status, _text(output_path), _text(errors_path))


def _text(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")
