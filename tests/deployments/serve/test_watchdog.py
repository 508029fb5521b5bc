"""A process that stands still is ended within seconds; one that works, sleeps or ends is not."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager

import psutil
import pytest

from deployments.serve import watchdog
from tests.harness.waiting import block_until

_LIMIT_S = 30.0
_LONG_S = 5.0  # several times as long as a process may stand still
_LIVING = ("sleeps", "waits for a lock", "computes")
_WORK = {
    "sleeps": "time.sleep(60)",
    "waits for a lock": "threading.Lock().acquire() and threading.Event().wait()",
    "computes": "while True: pass",
    "is stuck with Python's lock": "ctypes.PyDLL(None).sleep(60)",  # which does not let it go
}


@contextmanager
def watched(work: str) -> Iterator[tuple[subprocess.Popen[str], int]]:
    """Yield a process that has a watchdog and does its work, and the watchdog's number."""
    script = (
        "import ctypes, threading, time\n"
        "from deployments.serve.watchdog import start_watchdog\n"
        "print(start_watchdog(), flush=True)\n"
        f"{work}\n"
    )
    words = [sys.executable, "-c", script]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as one:
        assert one.stdout is not None
        try:
            yield one, int(one.stdout.readline())
        finally:
            one.kill()


def until_it_watches(pid: int) -> None:
    """Its interpreter has started once it has looked for a beat and has taken one."""
    block_until(lambda: "watchdog" in " ".join(psutil.Process(pid).cmdline()))
    time.sleep(0.5)


def test_who_lives_is_left_alone_and_ended_once_it_is_stopped() -> None:
    with ExitStack() as stack:
        found = [stack.enter_context(watched(_WORK[name])) for name in _LIVING]
        for _, pid in found:
            until_it_watches(pid)
        time.sleep(_LONG_S)
        for process, _ in found:
            assert process.poll() is None
            os.kill(process.pid, signal.SIGSTOP)
        for process, _ in found:
            assert process.wait(_LIMIT_S) == -signal.SIGKILL
            assert process.stderr is not None
            assert "neither runs nor waits for a core" in process.stderr.read()


def test_who_is_stopped_is_found_at_the_first_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "_STILL_LOOKS", 10**9)
    reading, writing = os.pipe()
    words = [sys.executable, "-c", f"import time; {_WORK['sleeps']}"]
    with subprocess.Popen(words) as process, ThreadPoolExecutor(1) as pool:
        found = pool.submit(watchdog.stands_still, process.pid, reading)
        try:
            with pytest.raises(TimeoutError):
                found.result(1.5)
            process.send_signal(signal.SIGSTOP)
            assert found.result(_LIMIT_S)
        finally:
            os.close(writing)
            process.kill()
    os.close(reading)


def test_who_is_stuck_with_pythons_lock_is_ended() -> None:
    with watched(_WORK["is stuck with Python's lock"]) as (process, _):
        assert process.wait(_LIMIT_S) == -signal.SIGKILL


@pytest.mark.parametrize("by", [signal.SIGTERM, signal.SIGKILL])
def test_the_watchdog_goes_with_its_process(by: signal.Signals) -> None:
    with watched(_WORK["sleeps"]) as (process, pid):
        until_it_watches(pid)
        process.send_signal(by)
        process.wait(_LIMIT_S)
        block_until(lambda: not psutil.pid_exists(pid))


def test_a_process_outlives_its_watchdog() -> None:
    with watched(_WORK["sleeps"]) as (process, pid):
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
