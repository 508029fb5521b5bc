"""The manifests come up as they are, and the drain of a router's node fails no request."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.report.machine import ROOT

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1800)]

NEEDS = ("kubectl", "redis-server", "ip", "unshare", "nsenter")
LIMIT_S = 1500.0


def test_the_drain_of_a_router_fails_no_request(tmp_path: Path) -> None:
    missing = [name for name in NEEDS if shutil.which(name) is None]
    if missing or os.geteuid() != 0:
        pytest.skip(f"a rehearsal needs root and {', '.join(NEEDS)}; missing: {missing}")
    record = tmp_path / "rehearsal.json"
    words = ["k8s/base", "--streams", "4", "--fetch-s", "4", "--output", str(record)]
    words += ["--events", "drain:router"]
    done = subprocess.run(
        [sys.executable, "-m", "loadtest.rehearse", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    install, drain = json.loads(record.read_text())["events"]
    assert install["endpoints"] == 2, "both router pods, and none with a GPU"
    assert (drain["event"], drain["failed"]) == ("drain of router", 0)
