"""Ends the `serve run FILE` that waits for an application which is refused.

`serve run` hands the file to Serve's controller and then only waits for Ctrl-C. It never learns
that the application was refused, and stays up with nothing to serve. A supervisor or a script that
waits for its end would wait for ever. The application is built by a task in the same cluster, which
knows better, and ends the run.

A run that has started the cluster is hung up on (SIGHUP). It ends at once, with a status that is
not 0, and the kernel ends the cluster with it. There is nothing to be ended in order. Ctrl-C would
give the status 0, SIGTERM prints a trace of Ray's core. A run that has joined a cluster gets
Ctrl-C, so that it takes Serve along.

Only a run of this machine that started this cluster's Serve is ended. It is ended only while
nothing is served in it. An application that is refused beside running ones, or is deployed anew,
stops none.
"""

from __future__ import annotations

import itertools
import logging
import os
import re
import signal
import subprocess
from collections.abc import Sequence
from pathlib import Path

from deployments.serve.private import driver_of_this_job

logger = logging.getLogger("ray.serve")

_LOG_S = 3.0  # until Serve has said why, and Ray has printed it in the run's terminal
_LAST_S = 30.0  # until it has ended, whatever it was told
_PARENT = re.compile(r"^PPid:\s*(\d+)$", re.MULTILINE)
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
    is_it = f'[ "$(cat /proc/{pid}/cmdline)" = "$was" ]'  # its number may be another's by then
    told = "; ".join(f"sleep {s}; {is_it} && kill -{number} {pid}" for s, number in _signals(pid))
    subprocess.run(
        ["/bin/sh", "-c", f"(was=$(cat /proc/{pid}/cmdline); {told}) >/dev/null 2>&1 &"],
        start_new_session=True,
        check=False,
        timeout=_START_LIMIT_S,
    )


def _signals(pid: int) -> Sequence[tuple[float, int]]:
    """Waits in seconds, and the signal that is sent after each. The last is for who ignores one."""
    first = signal.SIGHUP if has_started_this_cluster(pid) else signal.SIGINT
    return (_LOG_S, int(first)), (_LAST_S, int(signal.SIGTERM))


def has_started_this_cluster(pid: int) -> bool:
    """Return whether a process is the parent of this node's raylet, whose child a worker is."""
    try:
        status = Path(f"/proc/{os.getppid()}/status").read_text(encoding="utf-8")
    except OSError:
        return False
    found = _PARENT.search(status)
    return found is not None and int(found[1]) == pid


def _command(pid: int) -> Sequence[str]:
    """Return the words of a process of this machine; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return []


def _is_serve_run(words: Sequence[str]) -> bool:
    """Return whether these are the words of `serve run`, as the shell or Python starts it."""
    names = [Path(word).name for word in words]
    return ("serve", "run") in itertools.pairwise(names)


def _serves_something() -> bool:
    """Return whether any application of the cluster has replicas of a Router."""
    from ray import serve  # ranks import this package, and Serve would cost each of them 40 MB

    applications = serve.status().applications.values()
    return any("Router" in application.deployments for application in applications)
