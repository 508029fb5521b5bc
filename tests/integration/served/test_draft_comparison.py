"""Two draft models compared by a service: the command finds the worse one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.compare_drafts import main

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(400)]


def test_the_command_finds_the_draft_model_with_noise_in_it(tmp_path: Path) -> None:
    output = tmp_path / "found.json"
    words = ["--answers", "16", "--noise", "0.6", "--output", str(output)]
    assert main(words) == 0
    found = json.loads(output.read_text())
    assert set(found["drafts"]) == {"draft_model", "spoiled"}
    assert found["paired"]["low"] > 0
    assert sum(one["num_drafted"] for one in found["drafts"].values()) == 16
