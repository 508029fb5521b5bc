"""What cannot be served here is refused at once, with the sentence that `--check` says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from loadtest.report.machine import ROOT
from loadtest.service.served import Served, private_environment, started

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

LIMIT_S = 180.0  # 15 s on a machine that does nothing else
SENTENCE = re.compile(r"cannot be served here: .*?by its model paths\)")


def run(*command: str, folder: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command,
        cwd=ROOT,
        env={**os.environ, **private_environment(folder)},
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
    )


def wait_for(pattern: re.Pattern[str], service: Served) -> re.Match[str]:
    """The first match in what `serve run` prints; Ray prefixes lines, and may cut them."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if match := pattern.search(service.log()):
            return match
        time.sleep(0.2)
    raise AssertionError(f"{pattern.pattern!r} is not in:\n{service.log()[-3000:]}")


@pytest.fixture(scope="module")
def refused() -> Iterator[Served]:
    with started(ROOT / "configs" / "prod.yaml") as service:
        yield service


def test_serve_run_says_what_the_check_says(refused: Served, tmp_path: Path) -> None:
    shown = wait_for(SENTENCE, refused)[0]
    checked = run(
        sys.executable,
        *("-m", "deployments.config", "--check", "configs/prod.yaml"),
        folder=tmp_path,
    )
    assert checked.returncode == 1
    assert checked.stderr.count("\n") == 1
    assert shown in checked.stderr
    for missing in ("5 GPUs (Target 4, Draft 1)", "label outrider/role=", "Qwen2.5-72B"):
        assert missing in shown


def test_serve_status_says_it_too(refused: Served, tmp_path: Path) -> None:
    dashboard = wait_for(re.compile(r"http://127\.0\.0\.1:\d+"), refused)[0]
    shown = wait_for(SENTENCE, refused)[0]
    serve = str(Path(sys.executable).with_name("serve"))
    end = time.monotonic() + LIMIT_S
    application = {"status": "DEPLOYING"}
    while application["status"] == "DEPLOYING" and time.monotonic() < end:
        status = run(serve, "status", "-a", dashboard, folder=tmp_path)
        assert status.returncode == 0, status.stderr
        application = yaml.safe_load(status.stdout)["applications"]["outrider"]
    assert application["status"] == "DEPLOY_FAILED"
    assert shown in application["message"]
    assert "Traceback" not in application["message"]
    assert refused.process.poll() is None, "serve run stays until it is told to end"
