"""A `serve run` that waits for what is refused ends, and its status says so; no other does."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from deployments.serve import waiting_run
from deployments.serve.private import driver_of_this_job

# As Serve's own: Ctrl-C shuts it down with status 0.
SERVE = """
import os, signal, sys, time
if "other.yaml" in sys.argv:  # hung up on, its number becomes another program's
    signal.signal(signal.SIGTERM, lambda *_: None)  # which this one would not hear
    signal.signal(signal.SIGHUP, lambda *_: os.execlp("sleep", "sleep", "600"))
print("waits", flush=True)
try:
    time.sleep(600)
except KeyboardInterrupt:
    sys.exit(0)
"""


def _hear_all_but(ignored: int) -> None:
    """Undo what a run in the background, or under nohup, has made its children ignore."""
    for number in (signal.SIGHUP, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN if number == ignored else signal.SIG_DFL)


Start = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    started: list[subprocess.Popen[str]] = []

    def begin(name: str = "serve", *words: str, ignores: int = 0) -> subprocess.Popen[str]:
        program = tmp_path / name
        program.write_text(SERVE)
        process = subprocess.Popen(
            [sys.executable, str(program), *(words or ("run", "demo.yaml"))],
            stdout=subprocess.PIPE,
            text=True,
            preexec_fn=lambda: _hear_all_but(ignores),
        )
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == "waits\n"
        return process

    yield begin
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def refuse(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Refuse an application for which a process waits, with short waits between signals."""
    monkeypatch.setattr(waiting_run, "_LOG_S", 0.1)
    monkeypatch.setattr(waiting_run, "_LAST_S", 0.5)

    def refused(pid: int | None, *, serves: bool = False, started: bool = True) -> None:
        monkeypatch.setattr(waiting_run, "has_started_this_cluster", lambda pid: started)
        monkeypatch.setattr(waiting_run, "driver_of_this_job", lambda: pid)
        monkeypatch.setattr(waiting_run, "_serves_something", lambda: serves)
        waiting_run.end_waiting_run()

    return refused


@pytest.mark.parametrize(
    ("started", "ignores", "status"),
    [
        pytest.param(True, 0, -signal.SIGHUP, id="who started the cluster says so by its status"),
        pytest.param(False, 0, 0, id="who joined one ends in order"),
        pytest.param(True, signal.SIGHUP, -signal.SIGTERM, id="who ignores that ends too"),
        pytest.param(False, signal.SIGINT, -signal.SIGTERM, id="so does who joined one"),
    ],
)
def test_a_run_that_is_refused_ends(
    start: Start, refuse: Callable[..., None], started: bool, ignores: int, status: int
) -> None:
    process = start(ignores=ignores)
    refuse(process.pid, started=started)
    assert process.wait(60) == status


def test_a_worker_knows_who_started_its_cluster() -> None:
    """Here for the parent of this process's parent."""
    parent = psutil.Process(os.getppid()).ppid()
    assert waiting_run.has_started_this_cluster(parent)
    assert not waiting_run.has_started_this_cluster(os.getpid())


@pytest.mark.parametrize(
    ("name", "words", "serves"),
    [
        ("serve", ("run", "demo.yaml"), True),
        ("serve", ("deploy", "demo.yaml"), False),
        ("job.py", ("run", "demo.yaml"), False),
        ("serve", ("run", "other.yaml"), False),
    ],
    ids=["something is served", "another command", "another program", "who has its number then"],
)
def test_nothing_else_is_ended(
    start: Start, refuse: Callable[..., None], name: str, words: tuple[str, ...], serves: bool
) -> None:
    process = start(name, *words)
    refuse(process.pid, serves=serves)
    time.sleep(1.5)
    assert process.poll() is None


def test_without_a_run_nothing_happens(refuse: Callable[..., None]) -> None:
    refuse(None)
    refuse(2**22 + 1)  # no process has such a number


def test_without_ray_there_is_no_driver() -> None:
    assert driver_of_this_job() is None
