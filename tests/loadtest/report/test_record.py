"""Result files: what they begin with, how they are laid out, and what they must not name."""

from __future__ import annotations

import json
import shlex
from pathlib import Path

import pytest

from loadtest.report.machine import ROOT
from loadtest.report.record import head, public_command, write_json


def test_plain_lists_and_samples_take_a_line_each(tmp_path: Path) -> None:
    path = tmp_path / "new" / "record.json"
    samples = [{"a": 1, "b": [1, 2]}, {"a": 2, "b": []}]
    content = {
        "command": "x",
        "empty": {},
        "none": [],
        "values": [1, 2.5, None, "é"],
        "nested": [{"a": (1, 2)}, [[], [3]]],
        "samples": samples,
    }
    write_json(path, content)
    assert json.loads(path.read_text()) == json.loads(json.dumps(content))
    lines = path.read_text().splitlines()
    assert ' "values": [1, 2.5, null, "\\u00e9"],' in lines
    assert '  {"a": 1, "b": [1, 2]},' in lines
    assert list(path.parent.iterdir()) == [path]
    write_json(None, content)


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
