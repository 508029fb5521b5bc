"""A load's priority: its own, and nobody's who descends from it."""

from __future__ import annotations

import os
import subprocess
import sys
import threading

import pytest

from loadtest.client.arrivals import take_precedence


@pytest.mark.skipif(not hasattr(os, "sched_getscheduler"), reason="no scheduling policies here")
def test_what_a_load_starts_has_no_precedence() -> None:
    found: list[object] = []

    def run() -> None:  # in a thread, which has a priority of its own
        found.append(take_precedence())
        found.append(os.sched_getscheduler(0) & ~os.SCHED_RESET_ON_FORK)
        code = "import os; print(os.sched_getscheduler(0))"
        child = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
        )
        found.append(int(child.stdout))

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    expected = {"real-time": os.SCHED_RR, "normal": os.SCHED_OTHER}
    priority, policy, policy_of_child = found
    assert policy == expected[str(priority)]
    assert policy_of_child == os.SCHED_OTHER
