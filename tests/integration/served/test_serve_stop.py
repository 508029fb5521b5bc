"""A service ends cleanly."""

from __future__ import annotations

import subprocess
import sys
import time

import psutil
import pytest

from loadtest.report.machine import ROOT
from tests.harness.served_demo import ServedDemo

SERVES = """
import time
from pathlib import Path
from loadtest.service.served import started

with started(Path("configs/demo.yaml")) as service:
    print(service.process.pid, flush=True)
    time.sleep(300)
"""

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600)]


def test_ctrl_c_ends_it_cleanly(demo_at_its_end: ServedDemo) -> None:
    service = demo_at_its_end
    children, said = service.descendants(""), len(service.log())
    assert service.stop() == 0
    assert "Traceback" not in service.log()[said:]
    assert psutil.wait_procs(children, timeout=30)[1] == []


def test_a_load_test_that_is_terminated_leaves_no_service_behind() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", SERVES], cwd=ROOT, stdout=subprocess.PIPE, text=True
    ) as load:
        assert load.stdout is not None
        service = psutil.Process(int(load.stdout.readline()))
        deadline = time.monotonic() + 60
        while not service.children(recursive=True) and time.monotonic() < deadline:
            time.sleep(0.2)  # until it has started Ray
        started = [service, *service.children(recursive=True)]
        load.terminate()
        assert load.wait(90) == 128 + 15
        assert len(started) > 1
        assert psutil.wait_procs(started, timeout=30)[1] == []
