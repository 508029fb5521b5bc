"""A config that cannot be served here ends its `serve run`, with the sentence of `--check`."""

from __future__ import annotations

import re
import time

import pytest

from deployments.config.__main__ import main
from loadtest.report.machine import ROOT
from loadtest.service.served import Served, started

pytestmark = [pytest.mark.ray, pytest.mark.timeout(600)]

CONFIG = ROOT / "configs" / "one-node.yaml"
LIMIT_S = 180.0  # 15 s on a machine that does nothing else
SENTENCE = re.compile(r"cannot be served here: .*?by its model paths\)")


def wait_for(pattern: re.Pattern[str], service: Served) -> str:
    """The first match in what `serve run` prints; Ray prefixes lines, and may cut them."""
    end = time.monotonic() + LIMIT_S
    while time.monotonic() < end:
        if match := pattern.search(service.log()):
            return match[0]
        time.sleep(0.2)
    raise AssertionError(f"{pattern.pattern!r} is not in:\n{service.log()[-3000:]}")


def test_serve_run_says_what_the_check_says_and_ends(capsys: pytest.CaptureFixture[str]) -> None:
    with started(CONFIG) as service:
        shown = wait_for(SENTENCE, service)
        assert service.process.wait(LIMIT_S) not in (0, None)
        assert "so this `serve run` ends" in service.log()
    for missing in ("2 GPUs (Target 1, Draft 1), there are 0", "Qwen2.5-14B"):
        assert missing in shown
    assert main(["--check", str(CONFIG)]) == 1
    checked = capsys.readouterr().err
    assert shown in checked
    assert checked.count("\n") == 1
