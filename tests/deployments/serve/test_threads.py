"""A process that is stopped is told from one that waits for a core."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from functools import partial

import pytest

from deployments.serve.threads import HELD, StillWatch, Thread, first_thread, threads_of
from tests.harness.waiting import block_until

# A second thread waits while the first reads commands: `spin` makes it work.
_CHILD = """
import sys, threading
spins = threading.Event()
def work():
    spins.wait()
    while True: pass
threading.Thread(target=work, daemon=True).start()
for line in sys.stdin:
    spins.set() if line == "spin\\n" else None
    print(line, end="", flush=True)
"""


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    words = [sys.executable, "-c", _CHILD]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as found:
        ask(found, "hello")
        yield found
        found.kill()


def ask(child: subprocess.Popen[str], word: str) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdin.write(f"{word}\n")
    child.stdin.flush()
    assert child.stdout.readline() == f"{word}\n"


def test_a_process_that_is_stopped_is_still_and_one_that_works_is_not(
    child: subprocess.Popen[str],
) -> None:
    watch = StillWatch(partial(threads_of, child.pid))
    os.kill(child.pid, signal.SIGSTOP)
    block_until(lambda: watch.look() >= 3)
    thread = first_thread(child.pid)
    assert thread is not None
    assert thread.state in HELD
    assert len(threads_of(child.pid)) == 2
    os.kill(child.pid, signal.SIGCONT)
    ask(child, "spin")
    block_until(lambda: watch.look() == 0)
    for _ in range(5):
        assert watch.look() == 0, "its second thread works, or waits for a core"
        time.sleep(0.05)


def test_one_that_is_gone_is_not_known(child: subprocess.Popen[str]) -> None:
    child.kill()
    child.wait()
    assert first_thread(child.pid) is None
    assert threads_of(child.pid) == ()
    watch = StillWatch(partial(threads_of, child.pid))
    assert [watch.look() for _ in range(3)] == [0, 0, 0]


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([("S", 1.0)] * 4, [0, 1, 2, 3]),
        ([("T", 1.0)] * 3, [0, 1, 2]),
        ([("S", 1.0), ("S", 1.01), ("S", 1.02)], [0, 1, 2]),
        ([("S", 1.0), ("S", 1.1), ("S", 1.1), ("S", 1.1)], [0, 0, 1, 2]),
        ([("S", 1.0), ("S", 1.0), ("R", 1.0), ("S", 1.0)], [0, 1, 0, 1]),
        ([("S", 1.0), ("D", 1.0), ("D", 1.0)], [0, 0, 0]),
        ([("t", 1.0)] * 3, [0, 0, 0]),
    ],
    ids=[
        "sleeps",
        "stopped",
        "hardly wakes",
        "ran",
        "waits for a core",
        "waits for a disk",
        "is debugged",
    ],
)
def test_looks_in_a_row_are_counted(looks: list[tuple[str, float]], expected: list[int]) -> None:
    at_s = iter(float(number) for number in range(100))
    other = Thread("S", 5.0)
    seen = iter([[other, Thread(*look)] for look in looks])
    watch = StillWatch(lambda: next(seen), lambda: next(at_s) * 0.4)
    assert [watch.look() for _ in looks] == expected
