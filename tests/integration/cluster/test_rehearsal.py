"""The manifests come up as they are, and the drain of a router's node fails no request."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from loadtest.experiments.rehearse import obstacles
from loadtest.report.machine import ROOT

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1800)]

LIMIT_S = 1500.0
DRAIN, KEY = "drain:router", "key:router.default_max_tokens=500"


@pytest.mark.day(0)
def test_the_drain_of_a_router_fails_no_request(
    tmp_path: Path, pytestconfig: pytest.Config
) -> None:
    """A key of the router changes before, in a run with all combinations."""
    if obstacles():
        pytest.skip(f"a rehearsal cannot be here: {', '.join(obstacles())}")
    record = tmp_path / "rehearsal.json"
    is_full = pytestconfig.getoption("--full")
    events = f"{KEY},{DRAIN}" if is_full else DRAIN
    words = ("rehearse", "--quick", "--set", f"events={events}", "--output", str(record))
    done = subprocess.run(
        [sys.executable, "-m", "loadtest", *words],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    install, *changes, drain = json.loads(record.read_text(encoding="utf-8"))["samples"]
    assert install["way"] == "first install"
    assert install["runs"]["endpoints"] == [2.0], "both router pods, and none with a GPU"
    assert len(changes) == int(is_full)
    for change in changes:
        assert change["way"] == "key router.default_max_tokens"
        assert change["runs"]["problems"] == [0.0]
        assert change["runs"]["replaced Router"] == [2.0]
        assert change["runs"]["replaced Target"] == change["runs"]["replaced Draft"] == [0.0]
    assert drain["way"] == "drain router"
    assert drain["runs"]["problems"] == [0.0]
