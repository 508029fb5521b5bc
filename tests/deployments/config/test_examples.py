"""The shipped files are what the generator writes, and what it says of Ray is so."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from ray.serve.config import AutoscalingConfig
from ray.serve.schema import HTTPOptionsSchema, LoggingConfig

from deployments import scaling
from deployments.config.examples.__main__ import EXAMPLES, files, main
from deployments.config.examples.page import Example, Remark, printed
from deployments.config.examples.ray_keys import RAY_KEYS
from deployments.config.examples.shipped import DEMO
from loadtest.report.machine import ROOT

COMMAND = "python -m deployments.config.examples"


@pytest.mark.parametrize("path", files(), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_shipped_file_is_what_is_generated(path: Path) -> None:
    assert path.read_text(encoding="utf-8") == files()[path], f"run `{COMMAND}`"


def test_every_file_of_the_folder_is_generated() -> None:
    assert {path.stem for path in (ROOT / "configs").iterdir()} == set(EXAMPLES)


def test_one_file_can_be_printed(capsys: pytest.CaptureFixture[str]) -> None:
    main(["demo"])
    assert capsys.readouterr().out == (ROOT / "configs" / "demo.yaml").read_text(encoding="utf-8")


def example(**changes: Any) -> Example:
    fields: dict[str, Any] = {
        "name": "x",
        "head": "What it is for.",
        "serve": {"proxy_location": "HeadOnly"},
        "args": {"target": {"model_path": "m"}},
        "placement": "Where it goes.",
        "deployments": [{"name": "Router", "num_replicas": 1}],
    }
    return Example(**(fields | changes))


def comment_of(text: str, key: str) -> str:
    """All of the comment after a key's first value."""
    lines = text.splitlines()
    start = next(number for number, line in enumerate(lines) if line.lstrip().startswith(key))
    parts = [lines[start].partition("# ")[2]]
    for line in lines[start + 1 :]:
        if not line.startswith(" " * 37 + "# "):
            break
        parts.append(line.strip("# "))
    return " ".join(parts)


def test_a_value_is_explained_where_it_comes_up_first() -> None:
    args = {
        "target": {"model_path": "m", "max_model_len": Remark(64, "no more")},
        "draft": {"model_path": Remark("d", "a small one"), "max_model_len": 64},
    }
    text = printed(example(args=args))
    assert comment_of(text, "max_model_len: 64") == (
        "tokens of prompt and completion together; at most the checkpoint's own; no more; "
        "default: 2048"
    )
    draft = text[text.index("\n      draft:") : text.index("\n      drafts:")]
    assert draft.splitlines()[2:] == [
        f"{'        model_path: d':<37}# a small one",
        "        max_model_len: 64",
    ]
    assert all(len(line) <= 100 for line in text.splitlines())


def test_draft_models_of_a_name_are_printed_under_it() -> None:
    drafts = {"tiny": {"model_path": "t"}, "small": {"model_path": "s", "max_num_seqs": 3}}
    text = printed(example(args={"target": {"model_path": "m"}, "drafts": drafts}))
    [application] = yaml.safe_load(text)["applications"]
    assert application["args"]["drafts"] == drafts


def test_what_is_printed_is_read_back() -> None:
    deployments = [
        {
            "name": "Target",
            "placement_group_bundles": [Remark({"CPU": 1, "GPU": 0.5}, "half of it")],
            "ray_actor_options": {"label_selector": {"role": "in(a,b)"}, "num_cpus": 0.1},
        }
    ]
    text = printed(example(deployments=deployments, args={"target": {"model_path": "a: b"}}))
    [application] = yaml.safe_load(text)["applications"]
    assert application["args"]["target"]["model_path"] == "a: b"
    assert "draft" not in application["args"]
    assert application["deployments"] == [
        {
            "name": "Target",
            "placement_group_bundles": [{"CPU": 1, "GPU": 0.5}],
            "ray_actor_options": {"label_selector": {"role": "in(a,b)"}, "num_cpus": 0.1},
        }
    ]


@pytest.mark.parametrize("model", [HTTPOptionsSchema, LoggingConfig, AutoscalingConfig])
def test_rays_defaults_are_as_they_are_said_to_be(model: Any) -> None:
    values = model()
    keys = set(RAY_KEYS) & set(model.model_fields)
    assert keys
    for key in keys:
        value = getattr(values, key)
        shown = "none" if value is None else str(value).removesuffix(".0").split(".")[-1]
        if isinstance(value, str) and not hasattr(value, "value"):
            shown = value
        if isinstance(value, bool):
            shown = str(value).lower()
        assert RAY_KEYS[key][1] == f"Ray's default: {shown}", key


@pytest.mark.parametrize("name", ["TargetPolicy", "DraftPolicy", "ConstraintPolicy"])
def test_policies_defaults_are_as_they_are_said_to_be(name: str) -> None:
    defaults: Mapping[str, Any] = getattr(scaling, name).defaults
    for key, value in defaults.items():
        assert RAY_KEYS[key][1] == f"default: {'any' if value is None else value}"


def test_the_demo_says_its_reason_first() -> None:
    assert printed(DEMO).splitlines()[0].startswith("# The demo: ")
