"""The bench of look-aheads on the shipped pair: every way is there, with its counts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.lookahead import CDLH, CDSL, GREEDY, claims_of, main


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_the_command_measures_every_way(tmp_path: Path) -> None:
    output = tmp_path / "out.json"
    words = (
        "--prompts 1 --tokens 24 --repeats 1 --threads 1 --length 4 --candidates 3 "
        "--accept-threshold 0 --reward-threshold 0"  # every draft is kept
    )
    assert main([*words.split(), "--output", str(output)]) == 0
    result = json.loads(output.read_text())
    lines: dict[str, Any] = {line["way"]: line for line in result["lines"]}
    assert len(lines) == 4
    assert lines[GREEDY]["states"] == {}
    assert lines[CDLH]["states"] == {"lookahead": 24}
    assert lines[CDLH]["soft"] >= lines[GREEDY]["soft"]
    assert lines[CDLH]["steps_per_token"] > 2 * lines[CDLH]["passes_per_token"]  # they share them
    assert set(lines[CDSL]["states"]) == {"accepted"}
    assert lines[CDSL]["passes_per_token"] < 0.5 < lines[CDLH]["passes_per_token"]
    assert len(result["claims"]) == 5


def line(rate: float, passes: float, hard: float) -> dict[str, Any]:
    return {"runs": [rate], "passes_per_token": passes, "steps_per_token": passes, "hard": hard}


@pytest.mark.parametrize(
    ("cdsl", "met"),
    [
        (line(30.0, 1.0, 0.80), [True, True, True, True, True]),
        (line(20.0, 3.0, 0.55), [False, False, False, False, False]),
    ],
)
def test_claims_are_of_speed_and_satisfaction(cdsl: dict[str, Any], met: list[bool]) -> None:
    lines = {GREEDY: line(90.0, 0.5, 0.50), CDLH: line(10.0, 5.0, 0.80), CDSL: cdsl}
    assert [claim.is_met for claim in claims_of(lines)] == met
