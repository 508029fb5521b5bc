"""Older names of keys, in all the places where keys are given."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from deployments.config.__main__ import main
from deployments.config.keys import RENAMED, assignments, renewed
from deployments.config.schema import AppConfig
from deployments.config.serve_file import read_serve_file
from loadtest.report.machine import ROOT
from loadtest.service.served import free_port

DEMO = ROOT / "configs" / "demo.yaml"
OLD, NEW = "target.max_batch_rows", "target.max_num_batched_tokens"


def demo_with(tmp_path: Path, section: str, **keys: object) -> Path:
    """The demo's file; of `keys` an old name takes the place of today's."""
    content = yaml.safe_load(DEMO.read_text(encoding="utf-8"))
    args = content["applications"][0]["args"][section]
    for key, value in keys.items():
        args.pop(RENAMED.get(f"{section}.{key}", key), None)
        args[key] = value
    path = tmp_path / "old.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


@pytest.mark.parametrize("old", RENAMED)
def test_every_older_name_leads_to_a_key(old: str) -> None:
    section, _, name = old.partition(".")
    tree: dict[str, Any] = {"target": {"model_path": "x"}, "draft": {"model_path": "y"}}
    tree[section][name] = 7
    config = AppConfig.model_validate(tree)
    assert getattr(config.models[section], RENAMED[old]) == 7
    with pytest.raises(ValueError, match="unknown key"):
        AppConfig.model_validate({"target": {"model_path": "x"}, "router": {name: 7} | {"no": 1}})


def test_the_application_logs_what_replaced_it(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("ray.serve")
    logger.addHandler(caplog.handler)
    try:
        AppConfig.model_validate({"target.model_path": "x", OLD: "8"})  # as `serve run` gives it
    finally:
        logger.removeHandler(caplog.handler)
    assert f"{OLD} is an older name, it is max_num_batched_tokens now" in caplog.text


@pytest.mark.parametrize(
    "tree",
    [
        {"target": {"model_path": "x", "max_batch_rows": 8, "max_num_batched_tokens": 8}},
        {"target": {"model_path": "x", "max_batch_rows": 8}, NEW: "8"},
        {"target.model_path": "x", OLD: "8", NEW: "8"},
    ],
    ids=["tree", "both-kinds", "dotted"],
)
def test_both_names_cannot_be_given(tree: dict[str, Any]) -> None:
    complaint = f"{OLD} is an older name of max_num_batched_tokens; give only the new"
    with pytest.raises(ValueError, match=re.escape(complaint)) as caught:
        AppConfig.model_validate(tree)
    assert "model_path" not in str(caught.value), "the whole tree is not worth repeating"


def test_both_names_cannot_be_given_on_the_command_line() -> None:
    with pytest.raises(ValueError, match="give only the new"):
        read_serve_file(DEMO, assignments([f"{OLD}=8", f"{NEW}=9"]))


@pytest.mark.parametrize("name", [OLD, NEW])
def test_a_change_goes_by_either_name_whatever_the_file_says(tmp_path: Path, name: str) -> None:
    for path in (DEMO, demo_with(tmp_path, "target", max_batch_rows=256)):
        served = read_serve_file(path, assignments([f"{name}=8"]))
        assert served.config.target.max_num_batched_tokens == 8
        args = served.tree["applications"][0]["args"]
        assert args["target"]["max_num_batched_tokens"] == 8
        assert "max_batch_rows" not in args["target"]
        assert len(served.renamed) == (name == OLD) + (path != DEMO)


def test_the_check_says_what_replaced_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    path = demo_with(tmp_path, "draft", max_sessions=36)
    assert main(["--check", str(path), f"http_options.port={free_port()}"]) == 0
    assert "note: draft.max_sessions is an older name, it is max_num_seqs now" in (
        capsys.readouterr().out
    )


def test_a_written_file_has_the_names_of_today(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, written = demo_with(tmp_path, "target", max_sessions=9), tmp_path / "new.yaml"
    assert main([str(path), "--output", str(written)]) == 0
    assert "max_num_seqs now" in capsys.readouterr().out
    target = yaml.safe_load(written.read_text())["applications"][0]["args"]["target"]
    assert target["max_num_seqs"] == 9
    assert "max_sessions" not in target


def test_what_has_no_older_name_stays() -> None:
    tree: dict[Any, Any] = {
        "router": {"max_sessions": 3},
        "constraint": {"max_sessions": 4},
        5: [{"a": 1}],
    }
    assert renewed(tree) == (tree, [])


def test_a_value_that_is_no_yaml_is_refused_by_its_key() -> None:
    with pytest.raises(ValueError, match=r"target.model_path: '{x' cannot be read: expected"):
        AppConfig.model_validate({"target.model_path": "{x"})


def test_a_key_that_is_no_text_is_refused_as_one() -> None:
    with pytest.raises(ValueError, match="5"):
        AppConfig.model_validate({5: 1, "target": {"model_path": "x"}})
