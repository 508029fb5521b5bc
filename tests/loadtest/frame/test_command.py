"""Every experiment runs in its smallest form; the record has its rows, claims and settings.

Each runs on one day in three.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from loadtest.__main__ import main
from loadtest.experiments.registry import EXPERIMENTS
from loadtest.frame.pairs import find_models
from tests.harness.runs.matrices import NUM_DAYS

IN_PROCESS = [
    name
    for name, experiment in EXPERIMENTS.items()
    if experiment.stages[0] == "engine" and experiment.pair == "demo"
]
OF_DAYS = [
    pytest.param(name, marks=pytest.mark.day(number % NUM_DAYS))
    for number, name in enumerate(IN_PROCESS)
]


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_DAYS)
def test_an_experiment_runs(name: str, tmp_path: Path) -> None:
    output = tmp_path / "record.json"
    assert main([name, "--quick", "--threads", "1", "--output", str(output)]) == 0
    record = json.loads(output.read_text())
    experiment = EXPERIMENTS[name].quick()
    ways = {row["way"] for row in record["samples"]}
    skipped = set(record["settings"]["skipped"])  # their programs are not on this machine
    assert ways == set(experiment.ways) - skipped if experiment.ways else "1x6" in ways
    assert all(
        len(runs) == experiment.repeats and min(runs) >= 0.0
        for row in record["samples"]
        for runs in row["runs"].values()
    )
    assert record["command"].startswith(f"python -m loadtest {name}")
    assert output.with_suffix(".png").stat().st_size > 1000


def test_a_run_that_was_cut_goes_on_with_the_same_settings_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "record.json"
    words = ["first-token", "--quick", "--threads", "1", "--output", str(output)]
    assert main(words) == 0
    before = json.loads(output.read_text())["samples"]
    with pytest.raises(SystemExit):
        main([*words[:-2], "--resume"])
    assert "--resume goes with --output" in capsys.readouterr().err
    assert main([*words, "--resume"]) == 0
    assert json.loads(output.read_text())["samples"] == before
    with pytest.raises(SystemExit):
        main([*words, "--resume", "--tokens", "3"])
    assert "tokens = None, not 3" in capsys.readouterr().err


def test_a_study_asks_a_users_prompts_at_each_temperature_of_each_draft(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts = tmp_path / "mine.jsonl"
    prompts.write_text('{"task": "cities", "prompt": "Lima, Oslo, Rome, Lima, Oslo,"}\n')
    output = tmp_path / "study.json"
    demo = find_models("demo")
    drafts = f"--draft {demo.drafts['draft']} --draft {demo.target}"
    words = f"study --target {demo.target} {drafts} --prompts {prompts} --quick --threads 1"
    ways = ["--way", "k=0", "k=3", "k=3, draft-2", "suffix k=3"]
    assert main([*words.split(), *ways, "--output", str(output)]) == 0
    record = json.loads(output.read_text())
    assert [row["workload"] for row in record["samples"]] == ["cities T=0"] * 4
    assert [row["way"] for row in record["theory"]] == ["k=3", "k=3, draft-2", "suffix k=3"]
    assert record["theory"][1]["acceptance"] == 1.0  # the target's own weights
    printed = capsys.readouterr().out
    assert "| where | way | measured | acceptance | cost |" in printed
    assert "cities T=0, 1: " in printed


def test_adaptive_k_is_summed_up_over_several_records(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    paths = [tmp_path / "one.json", tmp_path / "other.json"]
    for path, rate in zip(paths, (1.2, 0.9), strict=True):
        rows = [
            {
                **{"stage": "engine", "workload": "story", "batch": 4, "way": way},
                "runs": {"tokens_per_s": [value] * 2},
            }
            for way, value in (("k=0", 1.0), ("adaptive", rate))
        ]
        record = {
            "question": "is k right",
            "command": "",
            "machine": {},
            "settings": {"pair": path.stem},
            "claims": [],
            "problems": [],
        }
        path.write_text(json.dumps(record | {"samples": rows}))
    assert main(["--summary", *map(str, paths)]) == 0
    [_, to_plain] = capsys.readouterr().out.splitlines()
    assert "over 2 cells: median 1.05, worst 0.90 (engine, other, story, batch 4)" in to_plain
