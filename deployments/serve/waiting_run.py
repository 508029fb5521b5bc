"""Ends the `serve run FILE` that waits for an application which is refused.

`serve run` hands the file to Serve's controller and then only waits for Ctrl-C: it never learns
that the application was refused, and stays up with nothing to serve. A supervisor or a script that
waits for its end would wait for ever. The application is built by a task in the same cluster, which
knows better. It ends the run as its operator would, by Ctrl-C, and once more while it shuts down,
because after a single one its exit status is 0. A run in the background of a script ignores Ctrl-C;
it is hung up on.

Only a run of this machine that started this cluster's Serve is ended, and only while nothing is
served in it: an application that is refused beside running ones, or is deployed anew, stops none.
"""

from __future__ import annotations

import itertools
import logging
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from deployments.serve.private import driver_of_this_job

logger = logging.getLogger("ray.serve")

_LOG_S = 3.0  # until Serve has said why, and Ray has printed it in the run's terminal
_SHUTDOWN_S = 0.5  # until the run is within its shutdown, which takes some seconds
_LAST_S = 30.0  # until it has ended, whatever it was told
_IGNORED = re.compile(r"^SigIgn:\s*([0-9a-f]+)$", re.MULTILINE)
_START_LIMIT_S = 10.0


def end_waiting_run() -> None:
    """End the `serve run` that waits for the application which is being refused, if one does.

    It ends some seconds later, when the refusal has been printed.
    """
    pid = driver_of_this_job()
    if pid is None or not _is_serve_run(_command(pid)) or _serves_something():
        return
    logger.error("nothing is left to serve, so this `serve run` ends")
    # Not by this process: it is a task's, and is ended with Serve's controller.
    told = " ".join(f"sleep {wait_s}; kill -{number} {pid};" for wait_s, number in _signals(pid))
    subprocess.run(
        ["/bin/sh", "-c", f"({told}) >/dev/null 2>&1 &"],
        start_new_session=True,
        check=False,
        timeout=_START_LIMIT_S,
    )


def _signals(pid: int) -> Sequence[tuple[float, int]]:
    """Waits in seconds, and the signal that is sent after each."""
    last = (_LAST_S, int(signal.SIGTERM))
    if _ignores(pid, signal.SIGINT):
        return (_LOG_S, int(signal.SIGHUP)), last
    return (_LOG_S, int(signal.SIGINT)), (_SHUTDOWN_S, int(signal.SIGINT)), last


def _ignores(pid: int, number: signal.Signals) -> bool:
    try:
        found = _IGNORED.search(Path(f"/proc/{pid}/status").read_text(encoding="utf-8"))
    except OSError:
        return False
    return found is not None and bool(int(found[1], 16) >> (number - 1) & 1)


def _command(pid: int) -> Sequence[str]:
    """The words of a process of this machine; empty: there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _is_serve_run(words: Sequence[str]) -> bool:
    """Whether these are the words of `serve run`, as the shell or Python starts it."""
    names = [Path(word).name for word in words]
    return ("serve", "run") in itertools.pairwise(names)


def _serves_something() -> bool:
    """Whether any application of the cluster has replicas of a Router."""
    from ray import serve  # ranks import this package, and Serve would cost each of them 40 MB

    applications = serve.status().applications.values()
    return any("Router" in application.deployments for application in applications)
