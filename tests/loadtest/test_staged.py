"""The bench of staged speculation: off and on by turns, fixed k and adaptive."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.staged import main
from tests.harness.local import DEMO

WORDS = "--prompts 1 --tokens 24 --repeats 1 --threads 1"


@pytest.mark.slow
def test_the_command_measures_both_with_each_k(tmp_path: Path) -> None:
    output = tmp_path / "staged.json"
    assert main([*WORDS.split(), "--output", str(output)]) == 0
    found = json.loads(output.read_text())
    assert [line["k"] for line in found["lines"]] == ["k=5", "adaptive"]
    for line in found["lines"]:
        assert set(line["tokens_per_s"]) == set(line["passes"]) == {"off", "on"}
        assert all(rate > 0 for rate in line["tokens_per_s"].values())
        assert 0 <= line["right"] <= line["guessed"]
    assert found["lines"][0]["passes"]["off"] > 0


@pytest.mark.slow
def test_a_third_model_drafts_for_the_draft_model(tmp_path: Path) -> None:
    """The target's own weights as its draft, and the shipped draft model for those."""
    pair, output = tmp_path / "pair", tmp_path / "staged.json"
    pair.mkdir()
    for part in ("target", "draft"):
        (pair / part).symlink_to(DEMO / "target")
    models = ["--pair", str(pair), "--smaller", str(DEMO / "draft")]
    assert main([*WORDS.split(), *models, "--output", str(output)]) == 0
    found = json.loads(output.read_text())["lines"]
    assert [line["k"] for line in found] == ["k=5", "adaptive"]
    for line in found:
        assert set(line["tokens_per_s"]) == set(line["passes"]) == {"off", "on", "smaller"}
        assert line["smaller"]["gain"] > 0
    guesses = found[0]["smaller"]
    assert 0 < guesses["right"] <= guesses["guessed"]
    assert found[0]["passes"]["smaller"] < found[0]["passes"]["off"]
