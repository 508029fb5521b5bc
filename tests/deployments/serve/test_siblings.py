"""A stopped process with a title of Serve's own is ended; one that lives or has another is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress

import pytest

from deployments.serve.siblings import serves_own
from tests.harness.waiting import block_until

_LONG_S = 3.0  # several looks
# A node: it starts two processes of these titles, as a raylet does, and a watchdog of one of them.
_NODE = """
import os, subprocess, sys
from deployments.serve.watchdog import start_watchdog
sleeps = "import time; time.sleep(60)"
for title in sys.argv[1:]:
    words = [title, "-c", sleeps]
    print(subprocess.Popen(words, executable=sys.executable).pid, flush=True)
watched = f"from deployments.serve.watchdog import start_watchdog as f; f(of_serve=True); {sleeps}"
print(subprocess.Popen([sys.executable, "-c", watched]).pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def node() -> Iterator[tuple[subprocess.Popen[str], list[int]]]:
    """A process with three children: a proxy, another worker, and a replica that looks at both."""
    words = [sys.executable, "-c", _NODE, "ray::ProxyActor", "ray::IDLE"]
    with ExitStack() as stack:
        process = stack.enter_context(
            subprocess.Popen(words, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        stack.callback(process.kill)
        assert process.stdout is not None
        pids = [int(process.stdout.readline()) for _ in range(3)]
        for pid in pids:
            stack.callback(_end, pid)
        yield process, pids


def _end(pid: int) -> None:
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGKILL)


def test_a_stopped_proxy_is_ended_and_nothing_else(
    node: tuple[subprocess.Popen[str], list[int]],
) -> None:
    process, (proxy, other, _) = node
    block_until(lambda: list(serves_own(process.pid)) == [proxy])
    time.sleep(_LONG_S)
    assert state(proxy) == state(other) == "S"
    for pid in (proxy, other):
        os.kill(pid, signal.SIGSTOP)
    block_until(lambda: state(proxy) == "Z")  # its parent waits for nothing
    time.sleep(_LONG_S)
    assert state(other) == "T"


def state(pid: int) -> str:
    """Return the letter of a process's state."""
    with open(f"/proc/{pid}/stat", encoding="utf-8") as file:
        return file.read().rpartition(")")[2].split()[0]
