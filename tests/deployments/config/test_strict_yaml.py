"""YAML that means something else than it looks like, as files and command lines have it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from deployments.config.__main__ import main
from deployments.config.keys import assignments
from deployments.config.schema import AppConfig
from deployments.config.strict_yaml import read_yaml
from loadtest.report.machine import ROOT


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: key 'a' is given twice, first in line 1"),
        ("a:\n  b: 1\n  b: 1", "line 3: key 'b' is given twice, first in line 2"),
        ("- {a: 1, a: 2}", "line 1: key 'a' is given twice"),
        ("1: a\n0x1: b", "line 2: key '0x1' is given twice, first in line 1"),
        ("a:\n  01024", "line 2: 01024 is 532 in YAML 1.1; write 1024"),
        ("a: -010", "-010 is -8 in YAML 1.1"),
        ("a: 12:30:00", "12:30:00 is 45000 in YAML 1.1"),
        ("a: 1:30.5", "1:30.5 is 90.5 in YAML 1.1"),
        ("a: yes", "yes is true in YAML 1.1; write true, or the word in quotes"),
        ("a: No", "No is false in YAML 1.1"),
        ("on: 1", "on is true in YAML 1.1"),
        ("a: OFF", "OFF is false in YAML 1.1"),
        ("a: 2024-01-01", "2024-01-01 is a date in YAML 1.1; put it in quotes"),
        ("a: .nan", ".nan is no finite number"),
        ("a: -.inf", "-.inf is no finite number"),
        ("a: &x [*x]", "what an anchor (&) names holds itself"),
        ("a: !!python/name:os.system", "could not determine a constructor"),
        ("a: 1\n---\nb: 1", "found another document"),
        ("a: [1", "line 1: expected"),
    ],
)
def test_it_is_refused_by_line(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=re.escape(said)):
        read_yaml(text)


@pytest.mark.parametrize(
    "text",
    [
        "a: 1_000",
        "a: 0x1F",
        "a: 07",
        "a: '01024'",
        "a: 'yes'",
        "a: 1e3",
        "a: true\nb: False\nc: ~",
        "base: &base {p: 1, q: 2}\nmore: {<<: *base, p: 3}",
        "list: [&x {a: 1}, *x, *x]",
        "one: &one {a: 1}\ntwo: &two {b: 2}\nboth: {<<: [*one, *two]}",
        "",
    ],
)
def test_all_else_is_read_as_serve_reads_it(text: str) -> None:
    assert read_yaml(text) == yaml.safe_load(text)


def test_anchors_that_are_gigabytes_written_out_are_refused() -> None:
    lines = ["a0: &a0 [1, 1]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    with pytest.raises(ValueError, match="over 100000 values"):
        read_yaml("\n".join(lines))


def test_the_check_refuses_a_file_by_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    text = (ROOT / "configs" / "demo.yaml").read_text()
    path = tmp_path / "mine.yaml"
    path.write_text(text.replace("  host: ", "  port: 8000\n  port: 01024\n  host: ", 1))
    assert main(["--check", str(path)]) == 1
    said = capsys.readouterr().err
    assert "mine.yaml: cannot be read: line " in said
    assert "key 'port' is given twice, first in line" in said


def test_words_of_a_command_line_are_read_likewise() -> None:
    with pytest.raises(ValueError, match=r"target\.max_num_seqs: '010' cannot be read: 010 is 8"):
        assignments(["target.max_num_seqs=010"])
    assert assignments(["target.max_num_seqs=10"]) == {"target.max_num_seqs": 10}


@pytest.mark.parametrize("value", [True, float("inf"), float("nan")])
def test_numbers_are_no_truth_values_and_finite(value: object) -> None:
    """Serve reads the file itself: `yes` would be a 1."""
    for key in ("max_num_seqs", "step_timeout_s", "block_size"):
        with pytest.raises(ValueError, match=rf"target\.{key}: "):
            AppConfig.model_validate({"target": {"model_path": "x", key: value}})
