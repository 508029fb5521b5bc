"""The frame of trials: exit status, result, and never a cut-off run that reads as clean."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from loadtest.clients import __main__ as clients
from loadtest.trial import frame
from loadtest.trial.frame import run_trial, trial_parser


@dataclass(kw_only=True)
class Report(frame.Report):
    done: list[int] = field(default_factory=list)

    def content(self) -> dict[str, object]:
        return {"is_clean": self.is_clean, "crash": self.crash, "done": self.done}


def parse(argv: Sequence[str]) -> argparse.Namespace:
    parser = trial_parser("loadtest.some", "One sentence.\n\nMore.")
    parser.add_argument("--number", type=int, default=3)
    return parser.parse_args(argv)


@pytest.mark.parametrize(
    ("violation", "status", "said"), [("", 0, "all held"), ("it leaks", 1, "VIOLATED: it leaks")]
)
def test_a_trial_writes_says_and_ends_with_what_held(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], violation: str, status: int, said: str
) -> None:
    def run(arguments: argparse.Namespace, report: Report) -> None:
        report.done.append(arguments.number)
        report.violations += [violation] if violation else []

    output = tmp_path / "some.json"
    assert run_trial("loadtest.some", parse, run, Report(), ["--output", str(output)]) == status
    found = json.loads(output.read_text())
    assert found["command"] == "python -m loadtest.some --output some.json"
    assert found["settings"]["config"] == "configs/demo.yaml"
    assert (found["done"], found["is_clean"]) == ([3], not violation)
    assert said in capsys.readouterr().out


def test_a_crash_before_anything_was_found_is_reported(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert not clients.Report(crash="ended early: lost").is_clean

    def run(arguments: argparse.Namespace, report: frame.Report) -> None:
        raise RuntimeError("lost")

    monkeypatch.setattr(clients, "run", run)
    output = tmp_path / "result.json"
    with pytest.raises(RuntimeError, match="lost"):
        clients.main(["--output", str(output)])
    found = json.loads(output.read_text())
    assert found["command"] == "python -m loadtest.clients --output result.json"
    assert found["machine"]["cores"]
    assert "VIOLATED: ended early: RuntimeError: lost" in capsys.readouterr().out
    flags = {"is_clean": False, "all_held": False, "result": "violated"}
    assert all(found[key] == value for key, value in flags.items() if key in found)
