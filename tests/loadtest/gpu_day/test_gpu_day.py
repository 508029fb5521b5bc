"""The first hour on a GPU, tried on a CPU against stand-ins, and parts that fail."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from loadtest.frame.links import LinkedStage
from loadtest.frame.runs import Ask
from loadtest.frame.ways import Way
from loadtest.gpu_day.__main__ import _found, main
from loadtest.gpu_day.parts import PARTS, Part
from loadtest.gpu_day.random_pair import make_random_pair
from loadtest.gpu_day.report import report
from loadtest.gpu_day.served import ROUTER_SECTION
from loadtest.gpu_day.suite import outcome_of
from loadtest.gpu_day.terms import Terms, engine_config
from router.drafters.draft_model import POOL

TRY = "--device cpu --pair tiny --repeats 1"


def hour(folder: Path, *words: str) -> tuple[int, dict[str, Any], str]:
    status = main([*TRY.split(), *words, "--output", str(folder)])
    record = json.loads((folder / "record.json").read_text())
    return status, record["parts"], (folder / "report.md").read_text()


@pytest.mark.day(0)
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_parts_that_need_one_process_are_measured_and_told(tmp_path: Path) -> None:
    names = ("cards", "engine", "passes", "launches", "draws")
    status, parts, page = hour(tmp_path, "--parts", *names)
    assert status == 0, page
    assert list(parts) == list(names)
    engine = parts["engine"]["answer"]
    assert "graphs" in engine["attention"]
    assert isinstance(engine["batch_invariant"], bool)
    passes = parts["passes"]["answer"]["lines"]
    rows = [1, 6, 48]
    assert [(p["graphs"], p["num_rows"]) for p in passes] == [
        (graphs, count) for graphs in ("eager", "off", "eager") for count in rows
    ]
    assert [p["products"] for p in passes] == ["plain"] * 6 + ["invariant"] * 3
    assert all(line["products_ms"] > 0 for line in passes)
    launched = parts["launches"]["answer"]["lines"]
    assert all(line["num_launches"] > 10 and line["busy_ms"] > 0 for line in launched)
    assert all((tmp_path / f"trace-graphs-{graphs}.json").is_file() for graphs in ("eager", "off"))
    draws = parts["draws"]["answer"]["lines"]
    operations = {line["terms"]: line["num_operations"] for line in draws if line["rows"] == 48}
    assert operations["greedy"] < operations["temperature"] < operations["top_p"]
    for name in names:
        assert f"## {name}: {PARTS[name].question}?" in page
    assert "| graphs | products | num_rows | pass_ms |" in page
    assert "longest of eager:" in page


def test_a_part_that_fails_leaves_the_others_alone(tmp_path: Path) -> None:
    pair = tmp_path / "pair"
    for name in ("target", "draft"):
        (pair / name).mkdir(parents=True)
        (pair / name / "config.json").write_text('{"vocab_size": 300}')
    words = ["--pair", str(pair), "--parts", "engine", "draws"]
    status, parts, page = hour(tmp_path / "out", *words)
    assert status == 1
    assert parts["engine"]["status"] == "failed"
    assert "exit status 1" in parts["engine"]["why"]
    assert parts["draws"]["status"] == "done"
    assert "**failed**" in page


def test_a_part_has_a_limit_and_leaves_no_process(tmp_path: Path) -> None:
    status, parts, _ = hour(tmp_path, "--parts", "cards", "--limit-scale", "1e-4")
    assert status == 1
    assert parts["cards"]["status"] == "timed out"
    listed = subprocess.run(["ps", "-eo", "args"], capture_output=True, text=True, check=True)
    assert str(tmp_path / "cards.json") not in listed.stdout


@pytest.mark.parametrize(
    ("needs", "why"),
    [
        ({"num_cards": 9}, "it needs 9 cards, there are 2"),
        ({"package": "no_such_one"}, "it needs no_such_one, which is not installed"),
    ],
)
def test_a_part_without_what_it_needs_is_skipped_with_the_reason(
    tmp_path: Path, needs: dict[str, Any], why: str
) -> None:
    terms = Terms(pair=tmp_path, device="cpu", repeats=1, folder=tmp_path)
    found = _found("some", Part("how", lambda terms: {}, 10.0, **needs), terms, 1.0)
    assert found == {"status": "skipped", "why": why, "elapsed_s": 0.0}
    record = {"machine": {"date": "today"}, "command": "c", "parts": {"cards": found}}
    assert f"**skipped**: {why}" in report(record)


def test_what_pytest_reports_is_counted() -> None:
    report_of_tests = ElementTree.fromstring(
        "<testsuites><testsuite>"
        '<testcase classname="a" name="passes"/>'
        '<testcase classname="a" name="fails"><failure message="two is not one">x</failure>'
        "</testcase>"
        '<testcase classname="b" name="breaks"><error message="no device"/></testcase>'
        '<testcase classname="b" name="skips"><skipped message="why"/></testcase>'
        "</testsuite></testsuites>"
    )
    assert outcome_of(report_of_tests) == {
        "num_passed": 1,
        "num_failed": 2,
        "num_skipped": 1,
        "failed": [
            {"test": "a::fails", "why": "two is not one"},
            {"test": "b::breaks", "why": "no device"},
        ],
    }


@pytest.mark.day(1)
@pytest.mark.slow
@pytest.mark.timeout(500)
def test_draft_and_target_are_served_side_by_side(tmp_path: Path) -> None:
    status, parts, page = hour(tmp_path, "--parts", "one-card", "tests")
    assert status == 0, page
    lines = parts["one-card"]["answer"]["lines"]
    assert {line["batch"] for line in lines} == {1, 8}
    assert {line["way"] for line in lines} == {"k=0", "k=3", "k=5", "adaptive"}
    assert all(0.1 < line["acceptance"] < 1.0 for line in lines if line["way"] == "k=3")
    tests = parts["tests"]["answer"]
    assert tests["num_failed"] == 0
    assert tests["num_skipped"] > 0
    assert "| batch | way | tokens_per_s |" in page


def test_random_pairs_agree_as_often_as_asked(tmp_path: Path) -> None:
    asks = [Ask(prompt_ids=ids, max_tokens=40) for ids in ((5, 9, 3, 7), (200, 6, 6), (14, 90))]
    lengths = {}
    timeouts = ROUTER_SECTION.timeouts.model_copy(update={"draft_ms": 60_000.0})
    patient = ROUTER_SECTION.model_copy(update={"timeouts": timeouts})  # kernels compile meanwhile
    for acceptance in (1.0, 0.0):
        folder = tmp_path / str(acceptance)
        make_random_pair("tiny", folder, acceptance=acceptance)
        terms = Terms(pair=folder, device="cpu", repeats=1, folder=tmp_path)
        target = engine_config(terms, "target", graphs="off")
        draft = engine_config(terms, "draft", graphs="off")
        with LinkedStage(target, {POOL: draft}, lambda way: patient) as stage:
            run = stage.run(asks, Way(k=3), 3)
        lengths[acceptance] = run.stats.mean_acceptance_length
    assert lengths[1.0] > 3.5  # 4 but for the last round
    assert lengths[0.0] < 1.3
