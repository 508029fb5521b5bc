"""What a run leaves behind that is cut off: never a result that reads as clean."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import httpx
import psutil
import pytest

from loadtest import rolling
from loadtest.faults import __main__ as faults
from loadtest.faults.campaign import Fault
from loadtest.faults.campaign import Outcome as FaultOutcome
from loadtest.report.record import write_json
from loadtest.scaling import __main__ as scaling
from loadtest.scaling.replicas import Sample

ENDS = [KeyboardInterrupt(), psutil.NoSuchProcess(7), httpx.ConnectError("refused")]
SECONDS: dict[str, Any] = {"pause_free_s": 0.5, "pause_constrained_s": 0.5}


def fault_outcome() -> FaultOutcome:
    fault = Fault(0, "draft-rank", "KILL")
    return FaultOutcome(fault=fault, pid=1, victim_gone_s=1.0, whole_s=2.0, **SECONDS)


def rolling_outcome() -> rolling.Outcome:
    return rolling.Outcome(change="more", settled_s=3.0, replaced={}, num_answers=4, **SECONDS)


def written(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text())
    return content


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_faults_that_are_cut_off_are_not_clean_and_keep_their_logs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException
) -> None:
    kept = []

    @contextlib.contextmanager
    def served(config: Path, *, change: Any, keeps_folder: Any) -> Iterator[Any]:
        try:
            yield MagicMock()
        finally:
            kept.append(keeps_folder())

    def strike(arguments: Any, watched: Any, report: faults.Report) -> None:
        report.outcomes += [fault_outcome()] * 3
        raise error

    monkeypatch.setattr(faults, "_log_to", lambda path: None)
    monkeypatch.setattr(faults, "served", served)
    monkeypatch.setattr(faults, "FaultService", MagicMock())
    monkeypatch.setattr(faults, "_strike", strike)
    with pytest.raises(type(error)):
        faults.main(["--output", str(tmp_path / "faults.json")])
    content = written(tmp_path / "faults.json")
    assert len(content["faults"]) == 3
    assert not content["is_clean"]
    assert content["crash"].startswith(f"ended early: {type(error).__name__}")
    assert kept == [True]


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_changes_that_are_cut_off_are_not_clean(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, error: BaseException
) -> None:
    def run(settings: Any, report: rolling.Report) -> None:
        report.outcomes += [rolling_outcome()] * 3
        raise error

    monkeypatch.setattr(rolling, "run", run)
    with pytest.raises(type(error)):
        rolling.main(["--output", str(tmp_path / "rolling.json")])
    content = written(tmp_path / "rolling.json")
    assert content["command"].startswith("python -m loadtest.rolling --output ")
    assert not content["is_clean"]
    assert content["crash"].startswith(f"ended early: {type(error).__name__}")


def test_scaling_that_is_cut_off_is_not_clean(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def run(config: Path, num_groups: int, stage_s: float, report: scaling.Report) -> None:
        for at_s, number in enumerate((1, 2, 1)):
            report.samples.append(
                Sample(at_s=at_s, num_streams=3, replicas={"Target": {"RUNNING": number}}, load=[])
            )
        report.is_back = True
        raise KeyboardInterrupt

    monkeypatch.setattr(scaling, "run", run)
    with pytest.raises(KeyboardInterrupt):
        scaling.main(["--output", str(tmp_path / "scaling.json")])
    content = written(tmp_path / "scaling.json")
    assert not content["is_clean"]
    assert content["crash"] == "ended early: KeyboardInterrupt: "
    assert [sample["at_s"] for sample in content["samples"]] == [0, 1, 2]


def test_samples_take_a_line_each(tmp_path: Path) -> None:
    path = tmp_path / "new" / "record.json"
    samples = [{"a": 1, "b": [1, 2]}, {"a": 2, "b": []}]
    write_json(path, {"command": "x", "empty": {}}, samples=samples)
    assert written(path) == {"command": "x", "empty": {}, "samples": samples}
    assert '  {"a": 1, "b": [1, 2]},\n' in path.read_text()
