"""The benchmark of scenarios from the command line: the demo pair, a few tokens, real engines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from loadtest.scenarios.__main__ import main

SHORT = ("--k", "2", "--pinned", "2", "--repeats", "2", "--run-s", "0.001", "--threads", "1")


def run(output: Path, *words: str) -> dict[str, Any]:
    main([*SHORT, "--output", str(output), *words])
    content: dict[str, Any] = json.loads(output.read_text(encoding="utf-8"))
    return content


def test_every_line_runs_by_turns_and_is_judged(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "scenarios.json"
    name = "demo-b1-t1.3-n8"
    content = run(output, "--scenario", name)
    (one,) = content["scenarios"]
    assert content["is_complete"]
    assert content["pairs"]["demo"]["draft_cost"] > 0
    lines = {line["way"]: line for line in one["lines"]}
    assert list(lines) == ["k=0", "k=2", "adaptive", "pinned k=2"]
    assert all(len(line["runs"]) == 2 for line in lines.values())
    assert lines["k=0"]["rounds_by_k"] == {"0": 1.0}
    for way in ("k=2", "pinned k=2"):  # until the draft has read the prompt nothing is drafted
        assert {"0", "2"} <= set(lines[way]["rounds_by_k"]) <= {"0", "1", "2"}
    assert set(one["to_best"]["picked"]) <= {"k=0", "k=2"}
    assert one["to_plain"]["low"] <= one["to_plain"]["value"] <= one["to_plain"]["high"]
    assert [claim["goal"] for claim in one["claims"]] == [0.95, 0.97, 0.98]
    assert output.with_suffix(".png").read_bytes().startswith(b"\x89PNG")
    printed = capsys.readouterr().out
    assert f"{name}: adaptive / best fixed k: " in printed


def test_a_run_goes_on_where_it_was_cut(tmp_path: Path) -> None:
    output = tmp_path / "scenarios.json"
    (first,) = run(output, "--scenario", "demo-b1-t1.3-n8")["scenarios"]
    content = run(output, "--resume", "--scenario", "demo-b1-*-n8", "demo-b4-n8")
    assert content["scenarios"][0] == first
    assert [one["name"] for one in content["scenarios"]] == ["demo-b1-t1.3-n8", "demo-b4-n8"]


def test_a_pair_that_is_not_here_is_left_out_with_the_reason(tmp_path: Path) -> None:
    words = ("--scenario", "a80-c5-b1", "--cache", str(tmp_path / "empty"))
    content = run(tmp_path / "scenarios.json", *words)
    (left_out,) = content["skipped"]
    assert left_out["name"] == "a80-c5-b1"
    assert "python -m loadtest.scenarios --grow" in left_out["reason"]
    assert content["scenarios"] == []


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("--scenario", "none-such"), "no scenario matches"),
        (("--pinned", "7"), "--pinned must be of 0 and --k"),
        (("--repeats", "1"), "at least 2"),
    ],
    ids=["name", "pinned", "repeats"],
)
def test_wrong_options_are_refused(
    words: tuple[str, ...], reason: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(words)
    assert reason in capsys.readouterr().err
