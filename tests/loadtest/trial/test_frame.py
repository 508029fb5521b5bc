"""The frame of trials: exit status, result, and never a cut-off run that reads as clean."""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import psutil
import pytest

from loadtest import kinds, rolling
from loadtest.clients import __main__ as clients
from loadtest.faults import __main__ as faults
from loadtest.fuzz import __main__ as fuzz
from loadtest.hostile import __main__ as hostile
from loadtest.hostile import loop_gaps
from loadtest.overload import __main__ as overload
from loadtest.scaling import __main__ as scaling
from loadtest.soak import __main__ as soak
from loadtest.soak.record import Report as SoakReport
from loadtest.trial import frame, watched
from loadtest.trial.frame import run_trial, trial_parser


@dataclass(kw_only=True)
class Report(frame.Report):
    done: list[int] = field(default_factory=list)

    def content(self) -> dict[str, object]:
        return {"is_clean": self.is_clean, "crash": self.crash, "done": self.done}

    def draw(self, path: Path) -> None:
        path.write_text("figure")


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
    assert output.with_suffix(".png").read_text() == "figure"
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), psutil.NoSuchProcess(7), httpx.ConnectError("refused")],
    ids=lambda error: type(error).__name__,
)
def test_a_trial_that_is_cut_off_is_not_clean_and_keeps_its_logs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException
) -> None:
    kept = []

    @contextlib.contextmanager
    def served(config: Path, *, keeps_folder: Any, **_: Any) -> Iterator[Any]:
        try:
            yield SimpleNamespace(folder=tmp_path, base_url="http://nowhere")
        finally:
            kept.append(keeps_folder())

    monkeypatch.setattr(watched, "served", served)
    monkeypatch.setattr(watched, "FaultService", contextlib.nullcontext)
    monkeypatch.setattr(frame, "served", served)

    def run(arguments: argparse.Namespace, report: Report) -> None:
        service: Any = watched.watched_service(arguments.config, report)
        if arguments.number:
            service = frame.served_at("", arguments.config, report)
        with service:
            report.done += [1, 2]
            raise error

    output = tmp_path / "some.json"
    for number in ("0", "1"):
        words = ["--output", str(output), "--number", number]
        with pytest.raises(type(error)):
            run_trial("loadtest.some", parse, run, Report(), words)
        found = json.loads(output.read_text())
        assert (found["done"], found["is_clean"]) == ([1, 2], False)
        assert found["crash"].startswith(f"ended early: {type(error).__name__}")
    assert kept == [True, True]


TRIALS: dict[str, tuple[Any, Any]] = {
    "clients": (clients, clients.Report),
    "faults": (faults, faults.Report),
    "fuzz": (fuzz, fuzz.Report),
    "hostile": (hostile, hostile.Report),
    "hostile.loop_gaps": (loop_gaps, loop_gaps.Report),
    "kinds": (kinds, kinds.Report),
    "overload": (overload, overload.Report),
    "rolling": (rolling, rolling.Report),
    "scaling": (scaling, scaling.Report),
    "soak": (soak, SoakReport),
}


@pytest.mark.parametrize("name", TRIALS)
def test_every_trial_reports_a_crash_before_anything_was_found(
    name: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    module, report = TRIALS[name]
    assert not report(crash="ended early: lost").is_clean

    def run(arguments: argparse.Namespace, report: frame.Report) -> None:
        raise RuntimeError("lost")

    monkeypatch.setattr(module, "run", run)
    output = tmp_path / "result.json"
    with pytest.raises(RuntimeError, match="lost"):
        module.main(["--output", str(output)])
    found = json.loads(output.read_text())
    assert found["command"] == f"python -m loadtest.{name} --output result.json"
    assert found["machine"]["cores"]
    assert "VIOLATED: ended early: RuntimeError: lost" in capsys.readouterr().out
    flags = {"is_clean": False, "all_held": False, "result": "violated"}
    assert all(found[key] == value for key, value in flags.items() if key in found)
