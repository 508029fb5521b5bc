"""Result files: what they begin with, and what they must not name."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from loadtest.report.machine import ROOT
from loadtest.report.record import head, public_command


def test_no_directory_of_the_machine_is_named() -> None:
    words = ["--pair", "grown=/home/somebody/pair", "--output", "/tmp/x/bench.json", "--k", "3"]
    words += ["--pair", "models/demo", "--output=/tmp/x/a.json", "--pair=old=/home/somebody/b"]
    words += [
        "--pair=demo=models/demo",
        "--url",
        "http://127.0.0.1:8000",
        "--config",
        str(ROOT / "configs" / "demo.yaml"),
    ]
    assert public_command("python -m loadtest.bench", words) == (
        "python -m loadtest.bench --pair grown --output bench.json --k 3 --pair models/demo "
        "--output=a.json --pair=old --pair=demo=models/demo --url http://127.0.0.1:8000 "
        "--config configs/demo.yaml"
    )
    settings = {"output": Path("/tmp/x/a.json"), "config": ROOT / "configs" / "demo.yaml", "k": 3}
    found = head("locust", ["-u", "2"], settings)
    assert found["command"] == "locust -u 2"
    assert found["settings"] == {"output": "a.json", "config": "configs/demo.yaml", "k": 3}
    assert found["machine"]["cores"]  # type: ignore[index]  # a dict


@pytest.mark.parametrize("folder", ["/", ROOT / "loadtest" / "results"])
def test_a_value_is_no_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An experiment may be run in any folder."""
    monkeypatch.chdir(folder)
    words = ["--set", "rounds=2", "kinds=router,target", "url=http://localhost:1", "--way=k=0"]
    assert public_command("x", words) == shlex.join(["x", *words])
