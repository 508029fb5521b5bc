"""What cannot be served here is refused at once, with the sentence that `--check` says."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest

from loadtest.report.machine import ROOT
from loadtest.service.served import Served, private_environment, started

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

LIMIT_S = 180.0  # 15 s on a machine that does nothing else
SENTENCE = re.compile(r"cannot be served here: .*?by its model paths\)")
SENTENCE_OF_ONE = re.compile(r"cannot be served here: [^\n]*Qwen[^\n]*")


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


def test_serve_run_says_what_the_check_says_and_ends(tmp_path: Path) -> None:
    shown, checked = refused_twice("one-node", SENTENCE, tmp_path)
    assert shown in checked
    for missing in ("2 GPUs (Target 1, Draft 1), there are 0", "Qwen2.5-14B"):
        assert missing in shown


def test_each_application_says_what_it_lacks_and_the_check_says_all(tmp_path: Path) -> None:
    shown, checked = refused_twice("prod", SENTENCE_OF_ONE, tmp_path)
    for missing in ("no node has the label outrider/role=", "no such folder: 'Qwen/Qwen2.5-"):
        assert missing in shown
        assert missing in checked
    assert "5 GPUs (Target 4, Draft 1)" in checked


def refused_twice(config: str, sentence: re.Pattern[str], folder: Path) -> tuple[str, str]:
    """Return what `serve run`, which ends, and `--check` say of a config that fits nowhere here."""
    with started(ROOT / "configs" / f"{config}.yaml") as service:
        shown = wait_for(sentence, service)[0]
        assert service.process.wait(LIMIT_S) not in (0, None)
        log = service.log()
    assert "so this `serve run` ends" in log
    checked = run(
        sys.executable,
        *("-m", "deployments.config", "--check", f"configs/{config}.yaml"),
        folder=folder,
    )
    assert checked.returncode == 1
    assert checked.stderr.count("\n") == 1
    return shown, checked.stderr
